package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// batch is commands that a peer is given and the ledger they appear in.
type batch struct {
	session session
	ledger  *ledger
	// first is the number of the first command, count how many there are.
	first, count int
	// submitters submit at the same time.
	submitters int
	// closed means that a submitter goes on when the line of its command is there, so that
	// never more commands than submitters are under way; otherwise it goes on when the
	// peer has taken the command.
	closed bool
	patience
}

// patience says how long a batch waits.
type patience struct {
	// look is the time between two looks into the ledger: no figure is finer.
	look time.Duration
	// stall is without any new line after what time the rest is taken for lost.
	stall time.Duration
	// settle is how long nothing more may appear after the last line.
	settle time.Duration
}

var patient = patience{look: time.Millisecond, stall: 30 * time.Second, settle: time.Second}

// run submits all commands and returns the time from the first submission to the last
// line. Every number must be in the ledger, once, also when the settled pause is over.
func (b batch) run(ctx context.Context) (time.Duration, error) {
	if err := b.session.prepare(ctx, b.first, b.count); err != nil {
		return 0, fmt.Errorf("prepare commands: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	begin := time.Now()
	var took time.Duration
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		if err := b.follow(ctx); err != nil {
			cancel(err)
		}
		took = time.Since(begin)
	}()
	var next atomic.Int64
	_, err := driveWhile(ctx, b.submitters, counted(b.count), func(ctx context.Context, _ int) error {
		return b.submit(ctx, b.first+int(next.Add(1))-1)
	})
	if err != nil {
		cancel(err)
	}
	<-followed
	if cause := context.Cause(ctx); cause != nil {
		return 0, cause // not what it has made of the submitters
	}
	if err := pause(ctx, b.settle); err != nil {
		return 0, err
	}
	if _, err := b.ledger.look(); err != nil {
		return 0, err
	}
	return took, b.ledger.whole()
}

func (b batch) submit(ctx context.Context, number int) error {
	arrived := b.ledger.expect(number)
	if err := b.session.submit(ctx, number); err != nil {
		return fmt.Errorf("submit command %d: %w", number, err)
	}
	if !b.closed {
		return nil
	}
	select {
	case <-arrived:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// follow returns when all lines are there, or with an error when one is that should not
// be, or when none has come for too long.
func (b batch) follow(ctx context.Context) error {
	ticker := time.NewTicker(b.look)
	defer ticker.Stop()
	progress := time.Now()
	for there := 0; ; {
		arrived, err := b.ledger.look()
		if err != nil {
			return err
		}
		if there += arrived; there == b.count {
			return nil
		}
		if arrived > 0 {
			progress = time.Now()
		} else if time.Since(progress) > b.stall {
			return errors.Join(fmt.Errorf("no line for %s", b.stall), b.ledger.whole())
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}
