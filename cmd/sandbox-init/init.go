package main

import (
	"errors"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/sandbox/guest/status"
)

// initOptions are the arguments of the init mode:
//
//	--status FILE   the preallocated status file (required)
//	--chdir DIR     the command's working directory
//	--filter FILE   the seccomp filter to put itself and the command under
//	--user U:G[,G]  the command's uid, gid and other groups, all numbers
//	--input KIND    give the command input (package input): stdin, or terminal
//	--              what follows is the command and its arguments
//
// The environment is the command's own.
type initOptions struct {
	status  string
	filter  string
	command command
}

func parseInit(args []string) (initOptions, error) {
	var o initOptions
	for len(args) > 0 {
		name := args[0]
		args = args[1:]
		if name == "--" {
			o.command.args, o.command.env = args, os.Environ()
			if o.status == "" || len(args) == 0 {
				return o, errors.New("init needs --status and a command")
			}
			return o, nil
		}
		if len(args) == 0 {
			return o, errors.New("an argument of init lacks its value: " + name)
		}
		value := args[0]
		args = args[1:]
		var err error
		switch name {
		case "--status":
			o.status = value
		case "--chdir":
			o.command.dir = value
		case "--filter":
			o.filter = value
		case "--input":
			o.command.terminal = value == "terminal"
			o.command.stdin = true
		case "--user":
			o.command.user, err = parseUser(value)
		default:
			err = errors.New("unknown")
		}
		if err != nil {
			return o, errors.New("bad argument of init: " + name)
		}
	}
	return o, errors.New("init needs -- and a command")
}

func parseUser(s string) (*syscall.Credential, error) {
	uid, groups, _ := strings.Cut(s, ":")
	u, err := strconv.ParseUint(uid, 10, 32)
	if err != nil {
		return nil, err
	}
	c := &syscall.Credential{Uid: uint32(u)}
	for i, group := range strings.Split(groups, ",") {
		g, err := strconv.ParseUint(group, 10, 32)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			c.Gid = uint32(g)
		} else {
			c.Groups = append(c.Groups, uint32(g))
		}
	}
	return c, nil
}

// runInit is the whole life of an init. It returns the command's code, 128 and the
// signal, or exitSetup.
func runInit(args []string) int {
	useFewThreads()
	o, err := parseInit(args)
	if err != nil {
		fail("%v", err)
	}
	closeInherited(3)
	file, err := status.Open(o.status)
	if err == nil {
		err = file.Write(status.Status{State: status.Starting, At: time.Now()})
	}
	if err != nil {
		fail("%v", err)
	}
	if o.filter != "" {
		if err := install(o.filter); err != nil {
			_ = settle(file, execFailed(status.StageFilter, err))
			return exitSetup
		}
	}
	// Orphans come to this process also where it is not PID 1.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

	signals := make(chan os.Signal, 64)
	signal.Notify(signals, forwarded...)
	if err := o.command.openInput(); err != nil {
		fail("%v", err)
	}
	if err := o.command.keepStderr(); err != nil {
		fail("%v", err)
	}
	if err := reserveThreads(threadsNeeded + o.command.threads()); err != nil {
		fail("%v", err)
	}
	pid, stage, err := o.command.start()
	if err != nil {
		s := execFailed(stage, err)
		if settle(file, s) != nil {
			return exitSetup
		}
		return execCode(s.Value)
	}
	started := time.Now()
	err = file.Write(status.Status{State: status.Running, StartedAt: started, At: started})
	if err != nil {
		_ = unix.Kill(-pid, unix.SIGKILL)
	}
	group := &processGroup{id: pid}
	if o.command.stdin {
		_ = unix.Close(int(o.command.files[0]))
	}
	o.command.takeInput(group)
	written := o.command.showTerminal()
	go forward(signals, group)
	ended := reap(group)
	select {
	case <-written:
	case <-time.After(terminalLimit): // something else of the sandbox still has it
	}
	ended.StartedAt = started
	if settle(file, ended) != nil {
		return exitSetup
	}
	return ended.ExitCode()
}

// settle writes the last status and makes it durable.
func settle(file *status.File, s status.Status) error {
	err := file.Write(s)
	if err == nil {
		err = file.Sync()
	}
	if cerr := file.Close(); err == nil {
		err = cerr
	}
	return err
}

// execCode is the code by which shells tell the same.
func execCode(errno int) int {
	if syscall.Errno(errno) == unix.ENOENT {
		return 127
	}
	return 126
}

// reap waits for every child until the command has ended.
func reap(command *processGroup) status.Status {
	// One for all, since nothing collects what each turn would leave.
	var ws unix.WaitStatus
	for {
		got, err := unix.Wait4(-1, &ws, 0, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			// Nobody else waits for the command, so this can not be.
			fail("wait: %v", err)
		}
		if got != command.id || !(ws.Exited() || ws.Signaled()) {
			continue
		}
		command.end()
		s := status.Status{State: status.Exited, Value: ws.ExitStatus(), At: time.Now()}
		if ws.Signaled() {
			s.State, s.Value = status.Signaled, int(ws.Signal())
		}
		s.Leftover = reapRest()
		return s
	}
}

// reapRest reaps what is dead and tells whether anything is still alive.
func reapRest() (leftover bool) {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return false
		}
		if pid == 0 {
			return true
		}
	}
}

// forwarded are the signals that people and programs send to a command. Each one more
// costs every start two switches of threads in the Go runtime.
var forwarded = []os.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGCONT,
}

// processGroup is that of the command. Signals are sent to it until the command has
// ended.
type processGroup struct {
	mu    sync.Mutex
	id    int
	ended bool
}

// signal tells whether the command was still there for it.
func (g *processGroup) signal(number syscall.Signal) (reached bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.ended && unix.Kill(-g.id, number) == nil
}

func (g *processGroup) end() {
	g.mu.Lock()
	g.ended = true
	g.mu.Unlock()
}

// forward passes signals on to the command's process group, those that came before
// it was there too.
func forward(signals <-chan os.Signal, group *processGroup) {
	for s := range signals {
		if number, ok := s.(syscall.Signal); ok {
			group.signal(number)
		}
	}
}
