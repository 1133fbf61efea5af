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
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/logs"
	"github.com/errand-run/errand/nodes/logs/logger"
	"github.com/errand-run/errand/nodes/sandbox/cgroup"
	"github.com/errand-run/errand/nodes/sandbox/guest/pid"
	"github.com/errand-run/errand/nodes/sandbox/guest/status"
)

// The files of a supervisor in the sandbox's directory; package process reads them.
const (
	// fileStatus is init's status file, preallocated by the driver.
	fileStatus = "status"
	// fileFinal is the status that counts, written once, when nothing is left alive
	// and the log has its end mark.
	fileFinal = "final"
	// filePIDs has a line for the supervisor and one for init, in the form of package
	// pid, from before the command may start.
	filePIDs = "pids"
)

// The descriptors that the driver gives a supervisor.
const (
	// fdNotify is closed when the command is known to run or never to; the reason why
	// there is not even an init is written to it.
	fdNotify = 3
	// fdDone is closed when the final status is on disk.
	fdDone = 4
	// fdLock holds a lock of the sandbox's directory while a supervisor lives.
	fdLock = 5
)

const (
	// endLimit bounds what stands between the command's end and the final status.
	endLimit = 10 * time.Second
	// initWait and initNotify are descriptors in init.
	initWait   = 3
	initNotify = 4
)

// superviseOptions are the arguments of the supervise mode, as NAME=VALUE, up to --
// and the command. The environment is the command's own.
type superviseOptions struct {
	// dir is the sandbox's directory, logDir that of its log.
	dir, logDir string
	segment     int64
	segments    int
	// isolate asks for namespaces of its own.
	isolate bool
	// cgroupRoot, parent and id name the group; none is made without a parent.
	cgroupRoot, parent, id string
	limits                 cgroup.Limits
	// user and chdir are passed on to init.
	user, chdir string
	command     []string
}

func parseSupervise(args []string) (o superviseOptions, err error) {
	for i, arg := range args {
		if arg == "--" {
			o.command = args[i+1:]
			break
		}
		name, value, _ := strings.Cut(arg, "=")
		switch name {
		case "dir":
			o.dir = value
		case "log":
			o.logDir = value
		case "segment":
			o.segment, err = strconv.ParseInt(value, 10, 64)
		case "segments":
			o.segments, err = strconv.Atoi(value)
		case "isolate":
			o.isolate, err = strconv.ParseBool(value)
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
			o.user = value
		case "chdir":
			o.chdir = value
		default:
			err = errors.New("unknown")
		}
		if err != nil {
			return o, fmt.Errorf("argument %s: %w", name, err)
		}
	}
	if o.dir == "" || o.logDir == "" || len(o.command) == 0 {
		return o, errors.New("dir, log and a command are needed")
	}
	return o, nil
}

// supervisor is the parent of one init.
type supervisor struct {
	superviseOptions
	group *cgroup.Group
	log   *logs.Writer
	pump  *logger.Pump
	// init is PID 1 of the sandbox, and its pidfd.
	init, initFD int
}

// runSupervise is the whole life of a supervisor.
func runSupervise(args []string) int {
	// The kernel kills init when the thread that made it ends.
	runtime.LockOSThread()
	for fd := fdNotify; fd <= fdLock; fd++ {
		unix.CloseOnExec(fd)
	}
	closeInherited(fdLock + 1)
	// Caught rather than ignored: what is ignored stays so across exec.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM)
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

	o, err := parseSupervise(args)
	s := &supervisor{superviseOptions: o, initFD: -1}
	if err == nil {
		err = s.start()
	}
	if err != nil {
		s.abort()
		_, _ = unix.Write(fdNotify, []byte(err.Error()))
		return exitSetup
	}
	_ = unix.Close(fdNotify)
	for ended := false; !ended; {
		ready, _ := s.pump.Turn(-1, s.initFD)
		ended = ready[0]
	}
	if s.finish() != nil {
		return exitSetup
	}
	return 0
}

// start makes everything and lets init go.
func (s *supervisor) start() error {
	var err error
	if s.log, err = logs.Create(s.logDir, logs.WriterOptions{SegmentBytes: s.segment, Segments: s.segments}); err != nil {
		return err
	}
	if s.parent != "" {
		parent, err := cgroup.Open(s.cgroupRoot, s.parent)
		if err != nil {
			return err
		}
		s.group = parent.Group(s.id)
		if err := s.group.Create(s.limits); err != nil {
			return err
		}
	}
	release, err := s.clone()
	if err != nil {
		return err
	}
	// A write end that is closed unwritten ends init.
	defer unix.Close(release)
	if s.group != nil {
		if err := s.group.Add(s.init); err != nil {
			return err
		}
	}
	if err := s.writePIDs(); err != nil {
		return err
	}
	if _, err := unix.Write(release, []byte{1}); err != nil {
		return fmt.Errorf("release init: %w", err)
	}
	return nil
}

// clone makes init and returns the descriptor that releases it.
func (s *supervisor) clone() (release int, err error) {
	var pipes [3][2]int
	for i := range pipes {
		if err := unix.Pipe2(pipes[i][:], unix.O_CLOEXEC); err != nil {
			return -1, fmt.Errorf("make pipe: %w", err)
		}
	}
	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open /dev/null: %w", err)
	}
	stdout, stderr, wait := pipes[0], pipes[1], pipes[2]
	args := []string{
		"sandbox-init", "init", "--status", filepath.Join(s.dir, fileStatus), "--no-sync",
		"--wait", strconv.Itoa(initWait), "--notify", strconv.Itoa(initNotify), "--chdir", s.chdir,
	}
	attr := &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, PidFD: &s.initFD}
	if s.isolate {
		args = append(args, "--proc")
		attr.Cloneflags = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
	}
	if s.user != "" {
		args = append(args, "--user", s.user)
	}
	args = append(append(args, "--"), s.command...)
	s.init, err = syscall.ForkExec("/proc/self/exe", args, &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: []uintptr{uintptr(null), uintptr(stdout[1]), uintptr(stderr[1]), uintptr(wait[0]), fdNotify},
		Sys:   attr,
	})
	for _, fd := range []int{null, stdout[1], stderr[1], wait[0]} {
		_ = unix.Close(fd)
	}
	if err != nil {
		s.init = 0
		return -1, fmt.Errorf("make init: %w", err)
	}
	s.pump = logger.NewPump(s.log, stdout[0], stderr[0])
	return wait[1], nil
}

func (s *supervisor) writePIDs() error {
	self, err := pid.Of(os.Getpid())
	if err != nil {
		return err
	}
	init, err := pid.Of(s.init)
	if err != nil {
		return err
	}
	path := filepath.Join(s.dir, filePIDs)
	err = os.WriteFile(path+".new", []byte(self.String()+"\n"+init.String()+"\n"), 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("write pids: %w", err)
	}
	return nil
}

// abort undoes what start has done; the command has not run.
func (s *supervisor) abort() {
	ctx, cancel := context.WithTimeout(context.Background(), endLimit)
	defer cancel()
	if s.init > 0 {
		_ = unix.Kill(s.init, unix.SIGKILL)
		s.waitInit()
	}
	if s.group != nil {
		_ = s.group.Remove(ctx)
	}
}

// finish follows init's end: it kills what is left, completes the log, and writes
// the final status.
func (s *supervisor) finish() error {
	ctx, cancel := context.WithTimeout(context.Background(), endLimit)
	defer cancel()
	final := s.outcome(s.waitInit())
	leftover := s.killRest(ctx)
	final.Leftover = final.Leftover || leftover
	if s.group != nil {
		final.OOMKills, _ = s.group.OOMKills()
	}
	complete := s.log.End(s.pump.DrainToEnd(logger.FlushLimit))
	final.LogIncomplete = !complete
	s.log.Close()
	err := status.Replace(filepath.Join(s.dir, fileFinal), final)
	_ = unix.Close(fdDone)
	if s.group != nil {
		// What stays is swept by the driver.
		_ = s.group.Remove(ctx)
	}
	return err
}

// waitInit reaps init.
func (s *supervisor) waitInit() unix.WaitStatus {
	var ws unix.WaitStatus
	for {
		if _, err := unix.Wait4(s.init, &ws, 0, nil); err != unix.EINTR {
			return ws
		}
	}
}

// outcome is the end of the command: what init says, unless the kernel's word on
// init itself is another.
func (s *supervisor) outcome(ws unix.WaitStatus) status.Status {
	said, err := status.Read(filepath.Join(s.dir, fileStatus))
	if err != nil {
		said = status.Status{}
	}
	switch {
	case ws.Signaled():
		if said.State == status.Exited || said.State == status.Signaled || said.State == status.ExecFailed {
			// Killed between its last word and its end.
			return said
		}
		return status.Status{State: status.Signaled, Value: int(ws.Signal()), StartedAt: said.StartedAt, At: time.Now()}
	case said.State == status.ExecFailed:
		return said
	case said.State == status.Empty || said.State == status.Starting:
		// Init could not do its work, and has said why in the log.
		return status.Status{State: status.ExecFailed, Stage: status.StageExec, Value: int(unix.EIO), At: time.Now()}
	case said.State == status.Running:
		// Nobody knows: the code is init's own.
		return said
	case said.ExitCode() != ws.ExitStatus():
		return status.Status{State: status.Exited, Value: ws.ExitStatus(), StartedAt: said.StartedAt, At: time.Now()}
	default:
		return said
	}
}

// killRest kills what outlived init: nothing where it was PID 1 of a namespace.
func (s *supervisor) killRest(ctx context.Context) (leftover bool) {
	if s.group != nil {
		leftover, _ = s.group.Kill(ctx)
	}
	for ctx.Err() == nil {
		_, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if errors.Is(err, unix.ECHILD) {
			return leftover
		}
		if children := liveChildren(); len(children) > 0 {
			leftover = true
			for _, child := range children {
				_ = unix.Kill(child, unix.SIGKILL)
			}
			time.Sleep(time.Millisecond)
		}
	}
	return leftover
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
