package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A keeper stands between the benchmark and a peer. It is this program again, under
// another name, and everything that the peer starts stays below it, however often it
// forks and whatever session it makes: orphans become the keeper's. So the keeper knows
// what a peer has left behind and ends it; and when the benchmark dies, by whatever
// signal, its end of a pipe closes and the keeper ends all and removes the folder.

const (
	keeperName = "errand-bench-keeper"
	// keeperDone is said to a keeper by a benchmark that lives and will remove the folder.
	keeperDone = "done"
	// stopGrace is how long a peer may take to end after SIGTERM, unless its place says so.
	stopGrace = 30 * time.Second
	// drainGrace is how long what it has started may then still take to end.
	drainGrace = 5 * time.Second
	// killGrace is how long what was killed may take to be gone.
	killGrace = 10 * time.Second
)

// keeping is what a keeper says last.
type keeping struct {
	// Ended is how the peer ended.
	Ended string `json:"ended"`
	// Early means that nobody had asked it to.
	Early bool `json:"early,omitempty"`
	// Stubborn is after what time it had to be killed.
	Stubborn time.Duration `json:"stubborn,omitempty"`
	// Left are the processes that it left behind. They are gone now.
	Left []string `json:"left,omitempty"`
	// Failed is what the keeper could not do.
	Failed string `json:"failed,omitempty"`
}

// err is what is wrong with it.
func (k keeping) err() error {
	var errs []error
	if k.Failed != "" {
		errs = append(errs, errors.New(k.Failed))
	}
	if k.Early {
		errs = append(errs, fmt.Errorf("it ended by itself: %s", k.Ended))
	}
	if k.Stubborn > 0 {
		errs = append(errs, fmt.Errorf("it did not end within %s of SIGTERM", k.Stubborn))
	}
	if len(k.Left) > 0 {
		errs = append(errs, fmt.Errorf("it left %d processes behind: %s", len(k.Left), strings.Join(k.Left, ", ")))
	}
	return errors.Join(errs...)
}

// keeperMain is the whole of a keeper: FOLDER GRACE PROGRAM ARGUMENTS. The program's
// output goes to standard error, what the keeper says to standard output.
func keeperMain(args []string) int {
	k := keeping{Failed: "a keeper needs a folder, a grace and a program"}
	if len(args) > 2 {
		if grace, err := time.ParseDuration(args[1]); err == nil {
			k = keep(args[0], grace, args[2:])
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(k); err != nil {
		return 1
	}
	return 0
}

func keep(folder string, grace time.Duration, command []string) (k keeping) {
	stop := make(chan bool, 1) // whether the benchmark lives
	go func() {
		line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		stop <- strings.TrimSpace(line) == keeperDone
	}()
	// Ignored they would be ignored by the peer too.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return keeping{Failed: fmt.Sprintf("become a subreaper: %v", err)}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return keeping{Failed: err.Error()}
	}
	//nolint:gosec // to start what it is told is all that a keeper is for
	peer, err := os.StartProcess(command[0], command, &os.ProcAttr{Dir: folder, Files: []*os.File{null, os.Stderr, os.Stderr}})
	if err != nil {
		return keeping{Failed: err.Error()}
	}
	ended, alone := reap(peer.Pid)
	lives := true
	select {
	case k.Ended = <-ended:
		k.Early = true
	case lives = <-stop:
		peer.Signal(syscall.SIGTERM) //nolint:errcheck // it may have ended
		select {
		case k.Ended = <-ended:
		case <-time.After(grace):
			k.Stubborn = grace
			peer.Kill() //nolint:errcheck // it may have ended
			k.Ended = <-ended
		}
	}
	select {
	case <-alone:
	case <-time.After(drainGrace):
		k.Left, err = endAllOf(alone)
	}
	if !lives {
		err = errors.Join(err, removeFolder(folder))
	}
	if err != nil {
		k.Failed = err.Error()
	}
	return k
}

// reap waits for every child until there is none, and tells how the peer ended.
func reap(peer int) (ended <-chan string, alone <-chan struct{}) {
	told, none := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(none)
		for {
			var status syscall.WaitStatus
			pid, err := syscall.Wait4(-1, &status, 0, nil)
			switch {
			case errors.Is(err, syscall.EINTR):
			case err != nil: // there is no child
				return
			case pid == peer && status.Signaled():
				told <- status.Signal().String()
			case pid == peer:
				told <- "exit status " + strconv.Itoa(status.ExitStatus())
			}
		}
	}()
	return told, none
}

// endAllOf kills everything below this process until nothing is there, and returns what
// there was at first.
func endAllOf(alone <-chan struct{}) (left []string, err error) {
	below, err := descendants(os.Getpid())
	if err != nil {
		return nil, err
	}
	for _, p := range below {
		if !p.ended {
			left = append(left, p.String())
		}
	}
	deadline := time.After(killGrace)
	for {
		for _, p := range below {
			unix.Kill(p.pid, unix.SIGKILL) //nolint:errcheck // it may have ended
		}
		select {
		case <-alone:
			return left, nil
		case <-deadline:
			return left, fmt.Errorf("%d processes do not end: %v", len(below), below)
		case <-time.After(10 * time.Millisecond):
		}
		if below, err = descendants(os.Getpid()); err != nil {
			return left, err
		}
	}
}

// process is one of the kernel's table.
type process struct {
	pid, parent int
	name        string
	ended       bool // and only waits to be collected
}

func (p process) String() string { return fmt.Sprintf("%s (pid %d)", p.name, p.pid) }

// descendants returns what a process has below it, at any depth.
func descendants(pid int) ([]process, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	var all []process
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		if p, ok := processOf(string(text)); ok {
			all = append(all, p)
		}
	}
	below, within := []process{}, []int{pid}
	for len(within) > 0 {
		for _, p := range all {
			if p.parent == within[0] {
				below, within = append(below, p), append(within, p.pid)
			}
		}
		within = within[1:]
	}
	return below, nil
}

// processOf reads the text of a process's stat.
func processOf(stat string) (p process, ok bool) {
	id, rest, open := strings.Cut(stat, " (")
	end := strings.LastIndex(rest, ") ")
	if !open || end < 0 {
		return p, false
	}
	fields := strings.Fields(rest[end+2:])
	if len(fields) < 2 {
		return p, false
	}
	pid, pidErr := strconv.Atoi(id)
	parent, parentErr := strconv.Atoi(fields[1])
	p = process{pid: pid, parent: parent, name: rest[:end], ended: fields[0] == "Z" || fields[0] == "X"}
	return p, pidErr == nil && parentErr == nil
}
