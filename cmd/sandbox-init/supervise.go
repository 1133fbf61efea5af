package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/fence/page"
	"github.com/errand-run/errand/nodes/logs"
	"github.com/errand-run/errand/nodes/logs/logger"
	"github.com/errand-run/errand/nodes/sandbox/cgroup"
	"github.com/errand-run/errand/nodes/sandbox/guest/pid"
	"github.com/errand-run/errand/nodes/sandbox/guest/status"
)

// The descriptors that the driver gives a supervisor.
const (
	// fdNotify is closed when the command is known to run or never to; the reason why
	// it could not even be tried is written to it.
	fdNotify = 3 + iota
	// fdDone is closed when the final status is written. A byte comes before if it is on
	// the disk and nothing is left alive: all that was comes to the supervisor as a child.
	fdDone
	// fdFile is the sandbox's file, which begins with the slots of its status, locked
	// while a supervisor lives. It stands where the supervisor writes a line for itself,
	// in the form of package pid, before the command may start and, without a PID
	// namespace, one for the command after.
	fdFile
	// fdControl is the read end of a pipe. Each byte that comes is the number of a
	// signal for the command; SIGKILL is for all of its processes.
	fdControl
	// fdControlEnd is the write end, which others open by /proc; while it is open here
	// the pipe has no end.
	fdControlEnd
)

// endLimit bounds what stands between the command's end and the final status.
const endLimit = 10 * time.Second

// superviseOptions are the arguments of the supervise mode, as NAME=VALUE, up to --
// and the command. The environment is the command's own.
type superviseOptions struct {
	// owner is whom the status names as its owner, and logPath the path of the log.
	owner, logPath string
	segment        int64
	segments       int
	// isolated tells that the driver made this process PID 1 of new namespaces.
	isolated bool
	// cgroupRoot, parent and id name the group; none is made without a parent.
	cgroupRoot, parent, id string
	limits                 cgroup.Limits
	// fence is the path of the page by which the node's sandboxes are killed, or empty.
	fence string
	// unfenced: the group is marked as one that others leave alone.
	unfenced bool
	command  command
}

func parseSupervise(args []string) (o superviseOptions, err error) {
	for i, arg := range args {
		if arg == "--" {
			o.command.args, o.command.env = args[i+1:], os.Environ()
			break
		}
		name, value, _ := strings.Cut(arg, "=")
		switch name {
		case "fence":
			o.fence = value
		case "unfenced":
			o.unfenced, err = strconv.ParseBool(value)
		case "owner":
			o.owner = value
		case "log":
			o.logPath = value
		case "segment":
			o.segment, err = strconv.ParseInt(value, 10, 64)
		case "segments":
			o.segments, err = strconv.Atoi(value)
		case "isolated":
			o.isolated, err = strconv.ParseBool(value)
		case "cgroups":
			o.cgroupRoot = value
		case "parent":
			o.parent = value
		case "id":
			o.id = value
		case "cpu":
			o.limits.CPUMillis, err = strconv.ParseInt(value, 10, 64)
		case "memory":
			o.limits.MemoryBytes, err = strconv.ParseInt(value, 10, 64)
		case "pids":
			o.limits.Pids, err = strconv.ParseInt(value, 10, 64)
		case "user":
			if value != "" {
				o.command.user, err = parseUser(value)
			}
		case "chdir":
			o.command.dir = value
		case "stdin":
			o.command.stdin, err = strconv.ParseBool(value)
		case "terminal":
			o.command.terminal, err = strconv.ParseBool(value)
		default:
			err = errors.New("unknown")
		}
		if err != nil {
			return o, fmt.Errorf("argument %s: %w", name, err)
		}
	}
	if o.owner == "" || o.logPath == "" || len(o.command.args) == 0 {
		return o, errors.New("owner, log and a command are needed")
	}
	return o, nil
}

// supervisor is the parent of one command.
type supervisor struct {
	superviseOptions
	group  *cgroup.Group
	log    *logs.Writer
	pump   *logger.Pump
	status *status.File
	// process is the command's, and commandFD its pidfd.
	process   *processGroup
	commandFD int
	// reached tells that a signal was sent to the command while it lived.
	reached bool
}

// runSupervise is the whole life of a supervisor.
func runSupervise(args []string) int {
	for fd := fdNotify; fd <= fdControlEnd; fd++ {
		unix.CloseOnExec(fd)
	}
	closeInherited(fdControlEnd + 1)
	o, err := parseSupervise(args)
	s := &supervisor{superviseOptions: o, commandFD: -1}
	if err == nil {
		err = s.prepare()
	}
	var last status.Status
	if err == nil {
		last, err = s.start()
	}
	if err != nil {
		s.abort()
		_, _ = unix.Write(fdNotify, []byte(err.Error()))
		return exitSetup
	}
	_ = unix.Close(fdNotify)
	if last.State == status.Running {
		last = s.follow(last.StartedAt)
	}
	if s.finish(last) != nil {
		return exitSetup
	}
	return 0
}

// prepare makes everything short of the command.
func (s *supervisor) prepare() error {
	if err := s.stand(); err != nil {
		return err
	}
	// Before /proc becomes that of the new namespace, in which this process is 1.
	self, err := pid.Self()
	if err == nil {
		err = appendName(self)
	}
	if err != nil {
		return err
	}
	if s.log, err = logs.Create(s.logPath, logs.WriterOptions{SegmentBytes: s.segment, Segments: s.segments}); err != nil {
		return err
	}
	s.status = status.On(os.NewFile(fdFile, "status"), s.owner)
	if s.fence != "" {
		// Until this process ends, whatever it waits for. The daemon and the guard kill too,
		// if they can.
		if _, err = page.Watch(s.fence, s.killAll); err != nil {
			return err
		}
	}
	if s.parent == "" {
		return nil
	}
	parent, err := cgroup.Open(s.cgroupRoot, s.parent)
	if err != nil {
		return err
	}
	s.group = parent.Group(s.id)
	if err := s.group.Create(s.limits); err != nil || !s.unfenced {
		return err
	}
	return s.group.Unfence()
}

// stand makes this process one that only SIGKILL ends, and with which the command
// ends.
func (s *supervisor) stand() error {
	if s.isolated {
		if os.Getpid() != 1 {
			return errors.New("not PID 1 of a namespace")
		}
		// The kernel kills all of a namespace with its PID 1, and keeps from PID 1 every
		// signal that it has no handler for; the runtime has one for these.
		return defaultActions(endingSignals...)
	}
	// The kernel kills the command when the thread that made it ends.
	runtime.LockOSThread()
	s.command.attr.Pdeathsig = unix.SIGKILL
	// Caught rather than ignored: what is ignored stays so across exec.
	c := make(chan os.Signal, 1)
	for _, number := range endingSignals {
		signal.Notify(c, number)
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	return nil
}

// endingSignals are those that end a program of Go unless it asks for them.
var endingSignals = []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM}

// defaultActions takes the runtime's handlers from signals.
func defaultActions(signals ...unix.Signal) error {
	// A struct sigaction of the kernel: handler, flags, restorer and mask.
	var action [4]uint64
	for _, number := range signals {
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(number), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0) //nolint:gosec // the kernel only reads it, during the call
		if errno != 0 {
			return fmt.Errorf("set action of signal %d: %w", number, errno)
		}
	}
	return nil
}

// appendName adds the name of a process to the sandbox's file.
func appendName(ref pid.Ref) error {
	if _, err := unix.Write(fdFile, []byte(ref.String()+"\n")); err != nil {
		return fmt.Errorf("write name of process: %w", err)
	}
	return nil
}

// start starts the command and returns, as it stands in the status file, that it
// runs or why it never will.
func (s *supervisor) start() (status.Status, error) {
	if s.isolated {
		if err := mountProc(); err != nil {
			failed := execFailed(status.StageMount, err)
			return failed, s.status.Write(failed)
		}
	}
	if err := s.streams(); err != nil {
		return status.Status{}, err
	}
	var number int
	var stage status.Stage
	var failure error
	spawn := func(fd int) error {
		if err := s.status.Write(status.Status{State: status.Starting, At: time.Now()}); err != nil {
			return err
		}
		s.command.attr.PidFD, s.command.attr.UseCgroupFD, s.command.attr.CgroupFD = &s.commandFD, fd >= 0, fd
		number, stage, failure = s.command.start()
		return nil
	}
	var err error
	if s.group != nil {
		err = s.group.Spawn(spawn)
	} else {
		err = spawn(-1)
	}
	if number > 0 {
		s.process = &processGroup{id: number}
		s.command.takeInput(s.process)
	}
	s.command.closeFiles()
	// The command's directory is held no longer than by the command.
	_ = unix.Chdir("/")
	if err != nil {
		return status.Status{}, err
	}
	if failure != nil {
		failed := execFailed(stage, failure)
		return failed, s.status.Write(failed)
	}
	now := time.Now()
	running := status.Status{State: status.Running, StartedAt: now, At: now}
	if err := s.status.Write(running); err != nil {
		return running, err
	}
	return running, s.nameCommand()
}

// streams makes the command's and the pump that reads them.
func (s *supervisor) streams() error {
	if err := s.command.openInput(); err != nil {
		return err
	}
	if s.command.terminal {
		s.pump = logger.NewPump(s.log, s.command.master, -1)
		return nil
	}
	var pipes [2][2]int
	for i := range pipes {
		if err := unix.Pipe2(pipes[i][:], unix.O_CLOEXEC); err != nil {
			return fmt.Errorf("make pipe: %w", err)
		}
	}
	if !s.command.stdin {
		null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open /dev/null: %w", err)
		}
		s.command.files = []uintptr{uintptr(null)}
	}
	s.command.files = []uintptr{s.command.files[0], uintptr(pipes[0][1]), uintptr(pipes[1][1])}
	s.pump = logger.NewPump(s.log, pipes[0][0], pipes[1][0])
	return nil
}

// nameCommand leaves the command's name for who comes after a supervisor that was
// lost: without a PID namespace the kernel may kill it a moment later.
func (s *supervisor) nameCommand() error {
	if s.isolated {
		return nil
	}
	command, err := pid.Of(s.process.id)
	if err != nil {
		return err
	}
	return appendName(command)
}

// follow carries output and signals until the command has ended.
func (s *supervisor) follow(startedAt time.Time) status.Status {
	ended := make(chan status.Status, 1)
	go func() { ended <- reap(s.process) }()
	s.log.Prepare()
	for {
		ready, _ := s.pump.Turn(-1, s.commandFD, fdControl)
		// A signal that finds the command dead has not reached it.
		if ready[0] {
			break
		}
		if ready[1] {
			s.obey()
		}
	}
	// Whoever sends one from now on learns so, however long the log and the disk take:
	// the pipe has no reader any more, and its number is not another file's.
	_ = unix.Dup3(fdControlEnd, fdControl, unix.O_CLOEXEC)
	last := <-ended
	last.StartedAt, last.Reach = startedAt, status.Unreached
	if s.reached {
		last.Reach = status.Reached
	}
	// What is known is not lost with this process.
	_ = s.status.Write(last)
	return last
}

// obey carries out what came through the control pipe.
func (s *supervisor) obey() {
	var b [64]byte
	n, err := unix.Read(fdControl, b[:])
	if err != nil {
		return
	}
	for _, number := range b[:n] {
		if unix.Signal(number) == unix.SIGKILL {
			s.reached = s.process.signal(unix.SIGKILL) || s.reached
			s.killAll()
			continue
		}
		s.reached = s.process.signal(unix.Signal(number)) || s.reached
	}
}

// killAll kills what is alive of the command.
func (s *supervisor) killAll() {
	if s.isolated {
		// All of the namespace but PID 1, forks in progress included.
		_ = unix.Kill(-1, unix.SIGKILL)
		return
	}
	for _, child := range liveChildren() {
		_ = unix.Kill(child, unix.SIGKILL)
	}
}

// abort undoes what was prepared for a command that could not be tried.
func (s *supervisor) abort() {
	ctx, cancel := context.WithTimeout(context.Background(), endLimit)
	defer cancel()
	if s.process != nil {
		_ = unix.Kill(s.process.id, unix.SIGKILL)
		s.killRest(ctx)
	}
	if s.group != nil {
		_ = s.group.Remove(ctx)
	}
}

// finish kills what is left, completes the log, and writes the final status.
func (s *supervisor) finish(last status.Status) error {
	ctx, cancel := context.WithTimeout(context.Background(), endLimit)
	defer cancel()
	leftover, alone := s.killRest(ctx)
	last.Leftover = last.Leftover || leftover
	if s.group != nil {
		if last.OOMKills, _ = s.group.OOMKills(); last.OOMKills > 0 {
			last.MemoryPeak, _ = s.group.MemoryPeak()
		}
	}
	drained := s.pump == nil || s.pump.DrainToEnd(logger.FlushLimit)
	last.LogIncomplete = !s.log.End(drained)
	last.LogUnwritten = last.LogIncomplete && s.log.Unwritten()
	s.log.Close()
	last.Final = true
	err := s.status.Write(last)
	if err == nil {
		err = s.status.SyncData()
	}
	if err == nil && alone {
		_, _ = unix.Write(fdDone, []byte{1})
	}
	_ = unix.Close(fdDone)
	if s.group != nil {
		// What stays is swept by the driver.
		_ = s.group.Remove(ctx)
	}
	return err
}

// killRest kills what outlived the command and waits for its end: all of it comes to
// this process as a child. alone tells that none is left.
func (s *supervisor) killRest(ctx context.Context) (leftover, alone bool) {
	for ctx.Err() == nil {
		child, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.ECHILD):
			return leftover, true
		case err == nil && child == 0:
			leftover = true
			s.killAll()
			time.Sleep(500 * time.Microsecond)
		}
	}
	return leftover, false
}

// liveChildren returns the live children of this process; those of a child come to
// it when the child has died.
func liveChildren() []int {
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return nil
	}
	var live []int
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for field := range strings.FieldsSeq(string(b)) {
			child, err := strconv.Atoi(field)
			if err != nil {
				continue
			}
			if ref, err := pid.Of(child); err == nil && ref.Alive() {
				live = append(live, child)
			}
		}
	}
	return live
}
