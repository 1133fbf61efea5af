// Package null is a driver whose sandboxes have no process: they start and end as
// their command line says. It goes through everything that the other drivers go
// through, the state on disk and the log included, so a node can be tried with many
// more runs than the machine could start commands for.
//
// The words of a command are:
//
//	after=DURATION       it ends so long after its start; 0 by default
//	exit=N               with this code; 0 by default
//	signal=N             by this signal
//	oom                  by signal 9, for want of memory
//	ignore-term          TERM does not end it
//	leftover             processes are left when it has ended
//	log=TEXT             it writes TEXT and a line end to stdout, at its start
//	no-log               it has no log, as if its files were lost
//	start-error=REASON   it can not be started, for good; REASON as in NOT_FOUND
//	create-error=REASON  it can not be created for now
package null

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// program is a command, read.
type program struct {
	After       time.Duration
	Exit        int32
	Signal      int32
	OOM         bool
	IgnoreTerm  bool
	Leftover    bool
	Log         []string
	NoLog       bool
	StartError  recordv1.Reason
	CreateError recordv1.Reason

	// command is what it was read from, users how many sandboxes have it.
	command []string
	users   int
}

// programs are those that sandboxes have, by their command: most have the same.
type programs map[string]*program

// of returns the program of a command.
func (p programs) of(command []string) (*program, error) {
	if known := p[nameOf(command)]; known != nil {
		return known, nil
	}
	read, err := parse(command)
	if err != nil {
		return nil, err
	}
	read.command = slices.Clone(command)
	return &read, nil
}

// enter adds a user of a program.
func (p programs) enter(used *program) {
	used.users++
	p[nameOf(used.command)] = used
}

// leave takes one away, and forgets a program that nobody has any more.
func (p programs) leave(left *program) {
	if left.users--; left.users == 0 {
		delete(p, nameOf(left.command))
	}
}

func nameOf(command []string) string { return strings.Join(command, "\x00") }

func parse(command []string) (program, error) {
	var p program
	if len(command) == 0 {
		return p, fmt.Errorf("the command is empty")
	}
	for i, word := range command {
		key, value, _ := strings.Cut(word, "=")
		var err error
		switch key {
		case "after":
			p.After, err = time.ParseDuration(value)
		case "exit":
			p.Exit, err = number(value, 0, 255)
		case "signal":
			p.Signal, err = number(value, 1, 64)
		case "oom":
			p.OOM, p.Signal = true, 9
		case "ignore-term":
			p.IgnoreTerm = true
		case "leftover":
			p.Leftover = true
		case "log":
			p.Log = append(p.Log, value)
		case "no-log":
			p.NoLog = true
		case "start-error":
			p.StartError, err = reason(value)
		case "create-error":
			p.CreateError, err = reason(value)
		default:
			err = fmt.Errorf("unknown word")
		}
		if err != nil {
			return p, fmt.Errorf("word %d of the command: %w", i+1, err)
		}
	}
	return p, nil
}

func number(s string, least, most int64) (int32, error) {
	n, err := strconv.ParseInt(s, 10, 32)
	if err == nil && (n < least || n > most) {
		err = fmt.Errorf("%d is not in %d to %d", n, least, most)
	}
	return int32(n), err
}

func reason(s string) (recordv1.Reason, error) {
	n, ok := recordv1.Reason_value["REASON_"+s]
	if !ok {
		return 0, fmt.Errorf("unknown reason %q", s)
	}
	return recordv1.Reason(n), nil
}
