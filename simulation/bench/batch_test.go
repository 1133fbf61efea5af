package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// hasty is patience for what this process writes by itself.
var hasty = patience{look: time.Millisecond, stall: 500 * time.Millisecond, settle: 20 * time.Millisecond}

// steady is patience on a busy machine.
var steady = patience{look: time.Millisecond, stall: time.Minute, settle: 20 * time.Millisecond}

// scripted is a session that does as it is told.
type scripted struct {
	prepared func(first, count int) error
	take     func(number int) error
	later    sync.WaitGroup
}

func (s *scripted) prepare(_ context.Context, first, count int) error {
	if s.prepared == nil {
		return nil
	}
	return s.prepared(first, count)
}
func (s *scripted) submit(_ context.Context, number int) error { return s.take(number) }
func (s *scripted) close()                                     {}

// enter appends a line, as a command does.
func enter(t *testing.T, l *ledger, number int) {
	file, err := os.OpenFile(l.path, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = fmt.Fprintln(file, number)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		t.Error(err)
	}
}

func TestABatchGivesNoFigure(t *testing.T) {
	const count = 10
	for _, c := range []struct {
		name string
		// take is called for each command and enters what it wants to.
		take func(s *scripted, enter func(int), number int) error
		patience
		says string
	}{
		{
			name: "when a command is lost", patience: hasty, says: "commands that were submitted have not run: [104]",
			take: func(_ *scripted, enter func(int), number int) error {
				if number != 104 {
					enter(number)
				}
				return nil
			},
		},
		{
			name: "when a peer takes all and does nothing", patience: hasty, says: "no line for 500ms",
			take: func(*scripted, func(int), int) error { return nil },
		},
		{
			name: "when a command runs twice", patience: steady, says: "command 103 has run twice",
			take: func(_ *scripted, enter func(int), number int) error {
				enter(number)
				if number == 103 {
					enter(number)
				}
				return nil
			},
		},
		{
			name: "when a command runs again after all have run", patience: patience{look: time.Millisecond, stall: time.Minute, settle: time.Second}, says: "command 109 has run twice",
			take: func(s *scripted, enter func(int), number int) error {
				enter(number)
				if number == 109 {
					s.later.Go(func() { time.Sleep(50 * time.Millisecond); enter(number) })
				}
				return nil
			},
		},
		{
			name: "when a command runs before it was submitted", patience: steady, says: "command 200 has run and was not submitted",
			take: func(_ *scripted, enter func(int), number int) error {
				enter(number + 100)
				return nil
			},
		},
		{
			name: "when a peer refuses a command", patience: steady, says: "submit command 105: no room",
			take: func(_ *scripted, enter func(int), number int) error {
				if number == 105 {
					return errors.New("no room")
				}
				enter(number)
				return nil
			},
		},
	} {
		for _, closed := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, closed %v", c.name, closed), func(t *testing.T) {
				t.Parallel()
				l := ledgerOf(t, t.TempDir())
				s := &scripted{}
				s.take = func(number int) error {
					return c.take(s, func(number int) { enter(t, l, number) }, number)
				}
				took, err := batch{session: s, ledger: l, first: 100, count: count, submitters: 1, closed: closed, patience: c.patience}.run(t.Context())
				s.later.Wait()
				if err == nil || !strings.Contains(err.Error(), c.says) || took != 0 {
					t.Errorf("%s, %v: want an error of %q", took, err, c.says)
				}
			})
		}
	}
}

func TestABatchIsCountedByItsLines(t *testing.T) {
	t.Parallel()
	// A peer that says at once that it has taken a command, and runs it later.
	const delay = 200 * time.Millisecond
	l := ledgerOf(t, t.TempDir())
	s := &scripted{}
	s.take = func(number int) error {
		s.later.Go(func() { time.Sleep(delay); enter(t, l, number) })
		return nil
	}
	took, err := batch{session: s, ledger: l, count: 8, submitters: 8, patience: steady}.run(t.Context())
	s.later.Wait()
	if err != nil || took < delay {
		t.Errorf("%s, %v: its commands took at least %s", took, err, delay)
	}
}

func TestAClosedBatchNeverHasMoreCommandsUnderWayThanSubmitters(t *testing.T) {
	t.Parallel()
	const submitters = 3
	l := ledgerOf(t, t.TempDir())
	var under, most atomic.Int64
	s := &scripted{}
	s.take = func(number int) error {
		now := under.Add(1)
		for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
		}
		s.later.Go(func() {
			time.Sleep(time.Millisecond)
			under.Add(-1) // the line is what lets the next one come
			enter(t, l, number)
		})
		return nil
	}
	_, err := batch{session: s, ledger: l, count: 60, submitters: submitters, closed: true, patience: steady}.run(t.Context())
	s.later.Wait()
	if err != nil || most.Load() != submitters {
		t.Errorf("%d were under way, want %d; %v", most.Load(), submitters, err)
	}
}

func TestPreparingABatchIsNotMeasured(t *testing.T) {
	t.Parallel()
	l := ledgerOf(t, t.TempDir())
	const long = 300 * time.Millisecond
	var first, count int
	var prepared time.Time
	s := &scripted{prepared: func(f, c int) error {
		first, count = f, c
		time.Sleep(long)
		prepared = time.Now()
		return nil
	}, take: func(number int) error { enter(t, l, number); return nil }}
	took, err := batch{session: s, ledger: l, first: 5, count: 2, submitters: 2, patience: steady}.run(t.Context())
	if err != nil || took > time.Since(prepared) || first != 5 || count != 2 {
		t.Errorf("%s, %v; prepared %d from %d", took, err, count, first)
	}
	s.prepared = func(int, int) error { return errors.New("no job") }
	_, err = batch{session: s, ledger: l, first: 7, count: 2, submitters: 2, patience: steady}.run(t.Context())
	wantError(t, err, "prepare commands: no job")
}

func TestABatchEndsWithItsContext(t *testing.T) {
	t.Parallel()
	l := ledgerOf(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	s := &scripted{take: func(int) error { cancel(); return nil }}
	if _, err := (batch{session: s, ledger: l, count: 4, submitters: 2, closed: true, patience: steady}).run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
