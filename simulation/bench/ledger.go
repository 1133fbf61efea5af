package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
)

const (
	// lineMax is more than any line of a ledger has.
	lineMax = 32
	// namedMax is how many of the missing numbers an error names.
	namedMax = 10
)

// ledger is a file to which each command appends one line, its number. What has been
// carried out is read from it and from nothing else: not from what a peer or its
// adapter says. Its methods may be called by any goroutine.
type ledger struct {
	path string

	mu    sync.Mutex
	file  *os.File
	begun []byte // of a line whose end is not there yet
	marks map[int]*mark
}

// mark is what the ledger has of one number.
type mark struct {
	there   bool
	arrived chan struct{} // closed when its line is there
}

func newLedger(path string) (*ledger, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, fmt.Errorf("make a ledger: %w", err)
	}
	return &ledger{path: path, file: file, marks: map[int]*mark{}}, nil
}

func (l *ledger) close() error { return l.file.Close() }

// line is what a shell is told to do for a number. A shell opens the file for appending
// and writes a short line at once, so that lines do not mix.
func (l *ledger) line(number string) string {
	return "echo " + number + " >> " + quoted(l.path)
}

// command is that as a command of its own.
func (l *ledger) command(number int) []string {
	return []string{"/bin/sh", "-c", l.line(strconv.Itoa(number))}
}

// quoted is a text as one word of a shell.
func quoted(text string) string {
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// expect says that a number is about to be submitted and may be there from now on.
func (l *ledger) expect(number int) (arrived <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &mark{arrived: make(chan struct{})}
	l.marks[number] = m
	return m.arrived
}

// look reads what has been appended since the last look and returns how many numbers
// have arrived. Whatever should not be there is an error: a number for the second time,
// one that nobody has submitted, or what is none.
func (l *ledger) look() (arrived int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text, err := io.ReadAll(l.file) // goes on where the last look has ended
	if err != nil {
		return 0, fmt.Errorf("read the ledger: %w", err)
	}
	l.begun = append(l.begun, text...)
	for {
		line, rest, whole := bytes.Cut(l.begun, []byte("\n"))
		if !whole {
			break
		}
		l.begun = rest
		if err := l.enter(string(line)); err != nil {
			return arrived, err
		}
		arrived++
	}
	if len(l.begun) > lineMax {
		return arrived, fmt.Errorf("the ledger has %.60q, which is no number", l.begun)
	}
	return arrived, nil
}

func (l *ledger) enter(line string) error {
	number, err := strconv.Atoi(line)
	if err != nil {
		return fmt.Errorf("the ledger has %.60q, which is no number", line)
	}
	m := l.marks[number]
	switch {
	case m == nil:
		return fmt.Errorf("command %d has run and was not submitted", number)
	case m.there:
		return fmt.Errorf("command %d has run twice", number)
	}
	m.there = true
	close(m.arrived)
	return nil
}

// whole returns an error that names what has been submitted and is not there.
func (l *ledger) whole() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var missing []int
	for number, m := range l.marks {
		if !m.there {
			missing = append(missing, number)
		}
	}
	switch {
	case len(l.begun) > 0:
		return fmt.Errorf("the ledger ends with %.60q, which is no line", l.begun)
	case len(missing) == 0:
		return nil
	}
	slices.Sort(missing)
	named := fmt.Sprint(missing[:min(len(missing), namedMax)])
	if len(missing) > namedMax {
		named += " and others"
	}
	return errors.New(strconv.Itoa(len(missing)) + " of " + strconv.Itoa(len(l.marks)) + " commands that were submitted have not run: " + named)
}
