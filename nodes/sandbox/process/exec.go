package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/guest/pid"
)

var (
	_ sandbox.Execs = (*Driver)(nil)
	_ sandbox.Roots = (*Driver)(nil)
)

// outputMax is how long the output of a command that has ended may stay open in the
// hands of its children.
const outputMax = 2 * time.Second

// namespaces are those that a supervisor has of its own, as spawn makes them. That of
// processes comes last: after it the others are no longer seen in /proc.
var namespaces = []string{"ipc", "uts", "mnt", "pid"}

// Exec runs a command in the namespaces and the group of a sandbox.
func (d *Driver) Exec(ctx context.Context, id string, e sandbox.Exec) (sandbox.ExecEnd, error) {
	x, err := d.find(id)
	if err != nil {
		return sandbox.ExecEnd{}, err
	}
	ctx, leave, err := x.enter(ctx)
	if err != nil {
		return sandbox.ExecEnd{}, err
	}
	defer leave()
	command, err := d.execCommand(ctx, x, e)
	if err != nil {
		return sandbox.ExecEnd{}, err
	}
	if e.Terminal != nil {
		return d.execTerminal(x, command, e)
	}
	command.Stdin, command.Stdout, command.Stderr = nil, e.Stdout, e.Stderr
	var input io.WriteCloser
	if e.Stdin != nil {
		if input, err = command.StdinPipe(); err != nil {
			return sandbox.ExecEnd{}, fmt.Errorf("exec in sandbox %s: %w", id, err)
		}
	}
	if err := d.startInside(x, command); err != nil {
		if input != nil {
			_ = input.Close()
		}
		return sandbox.ExecEnd{}, fmt.Errorf("exec in sandbox %s: %w", id, err)
	}
	if input != nil {
		go func() {
			_, _ = io.Copy(input, e.Stdin) // a command need not read its input
			_ = input.Close()
		}()
	}
	return control(command, e, nil)
}

// enter counts a command in, whose context ends with the sandbox.
func (x *box) enter(ctx context.Context) (inside context.Context, leave func(), err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.started || closed(x.ended) {
		return nil, nil, records.Errorf(records.ClassConflict, "sandbox %s does not run", x.meta.Info.ID)
	}
	inside, cancel := context.WithCancel(ctx)
	left := make(chan struct{})
	if x.execs == nil {
		x.execs = map[chan struct{}]struct{}{}
	}
	x.execs[left] = struct{}{}
	go func() {
		select {
		case <-x.ended:
			cancel()
		case <-inside.Done():
		}
	}()
	return inside, func() {
		cancel()
		close(left)
		x.mu.Lock()
		defer x.mu.Unlock()
		delete(x.execs, left)
	}, nil
}

// awaitExecs returns when no command is left that Exec has started; the sandbox has
// ended, and they with it.
func (x *box) awaitExecs(ctx context.Context) error {
	x.mu.Lock()
	running := slices.Collect(maps.Keys(x.execs))
	x.mu.Unlock()
	for _, left := range running {
		select {
		case <-left:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// own returns the variables of the sandbox's own command, and its user as enter takes
// it: they are not kept, but its supervisor was given them.
func (x *box) own() (env []string, user string, err error) {
	x.mu.Lock()
	supervisor := x.supervisor
	x.mu.Unlock()
	proc := procOf(supervisor)
	environ, err := os.ReadFile(filepath.Join(proc, "environ"))
	if err != nil {
		return nil, "", err
	}
	line, err := os.ReadFile(filepath.Join(proc, "cmdline"))
	if err != nil {
		return nil, "", err
	}
	if now, err := pid.Of(supervisor.PID); err != nil || now != supervisor {
		return nil, "", pid.ErrGone
	}
	for word := range strings.SplitSeq(string(line), "\x00") {
		if word == "--" {
			break
		}
		if value, ok := strings.CutPrefix(word, "user="); ok {
			user = value
		}
	}
	return strings.FieldsFunc(string(environ), func(r rune) bool { return r == 0 }), user, nil
}

func procOf(ref pid.Ref) string { return filepath.Join("/proc", strconv.Itoa(ref.PID)) }

// execCommand makes the process that becomes the command.
func (d *Driver) execCommand(ctx context.Context, x *box, e sandbox.Exec) (*exec.Cmd, error) {
	user, err := resolveUser(e.User)
	if err != nil {
		return nil, records.Errorf(records.ClassInvalid, "exec: %w", err)
	}
	env, own, err := x.own()
	if err != nil {
		return nil, records.Errorf(records.ClassConflict, "exec in sandbox %s: %w", x.meta.Info.ID, err)
	}
	if e.User == "" {
		user = own
	}
	dir := e.WorkingDir
	if dir == "" {
		dir = x.meta.Dir
	}
	args := []string{"enter", "--chdir", dir}
	if user != "" && d.isolate {
		args = append(args, "--user", user)
	}
	command := exec.CommandContext(ctx, d.config.Helper, append(append(args, "--"), e.Command...)...)
	command.Env, command.Dir = append(env, e.Env...), "/"
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	command.Cancel = func() error { return unix.Kill(-command.Process.Pid, unix.SIGKILL) }
	command.WaitDelay = outputMax
	return command, nil
}

// startInside starts a process on a thread that is in the sandbox's namespaces, and
// ends with it.
func (d *Driver) startInside(x *box, command *exec.Cmd) error {
	if !d.isolate {
		return command.Start()
	}
	x.mu.Lock()
	supervisor := x.supervisor
	x.mu.Unlock()
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is of no use to others
		start := func(fd int) error {
			if fd >= 0 {
				command.SysProcAttr.UseCgroupFD, command.SysProcAttr.CgroupFD = true, fd
			}
			if err := join(supervisor); err != nil {
				return err
			}
			return command.Start()
		}
		if x.group == nil {
			started <- start(-1)
			return
		}
		err := x.group.Spawn(start)
		if err != nil && command.Process != nil {
			_ = command.Cancel()
			_ = command.Wait()
		}
		started <- err
	}()
	return <-started
}

// join brings the calling thread into the namespaces of a process.
func join(leader pid.Ref) error {
	// A thread that shares its working directory with others may not change its mounts.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	files := make([]*os.File, len(namespaces))
	for i, name := range namespaces {
		file, err := os.Open(filepath.Join(procOf(leader), "ns", name))
		if err != nil {
			return fmt.Errorf("namespace: %w", err)
		}
		defer file.Close()
		files[i] = file
	}
	// What was opened is the leader's if it is still there.
	if now, err := pid.Of(leader.PID); err != nil || now != leader {
		return pid.ErrGone
	}
	for i, file := range files {
		if err := unix.Setns(int(file.Fd()), 0); err != nil {
			return fmt.Errorf("enter namespace %s: %w", namespaces[i], err)
		}
	}
	return nil
}

// execTerminal runs the command on a terminal of its own.
func (d *Driver) execTerminal(x *box, command *exec.Cmd, e sandbox.Exec) (sandbox.ExecEnd, error) {
	master, slave, err := openTerminal()
	if err != nil {
		return sandbox.ExecEnd{}, fmt.Errorf("exec in sandbox %s: terminal: %w", x.meta.Info.ID, err)
	}
	defer master.Close()
	err = resize(master, *e.Terminal)
	if err == nil {
		command.Stdin, command.Stdout, command.Stderr = slave, slave, slave
		command.SysProcAttr.Setctty = true
		err = d.startInside(x, command)
	}
	if err = errors.Join(err, slave.Close()); err != nil {
		return sandbox.ExecEnd{}, fmt.Errorf("exec in sandbox %s: %w", x.meta.Info.ID, err)
	}
	if e.Stdin != nil {
		go func() { _, _ = io.Copy(master, e.Stdin) }() // ends with the input or the terminal
	}
	output := make(chan struct{})
	go func() {
		defer close(output)
		_, _ = io.Copy(e.Stdout, master) // a terminal ends with an error
	}()
	end, err := control(command, e, master)
	select {
	case <-output:
	case <-time.After(outputMax):
		_ = master.Close()
		<-output
	}
	return end, err
}

// openTerminal opens a terminal whose master does not block: a write to it that nobody
// reads ends when it is closed, and not never.
func openTerminal() (master, slave *os.File, err error) {
	blocking, slave, err := pty.Open()
	if err != nil {
		return nil, nil, err
	}
	defer blocking.Close()
	fd, err := unix.FcntlInt(blocking.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, nil, errors.Join(err, slave.Close())
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, nil, errors.Join(err, unix.Close(fd), slave.Close())
	}
	return os.NewFile(uintptr(fd), "terminal"), slave, nil
}

// resize leaves the master as it is, which its Fd would make block.
func resize(master *os.File, size sandbox.TerminalSize) error {
	raw, err := master.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Columns})
	})
	return errors.Join(err, failed)
}

// control does what comes meanwhile and returns how the command has ended.
func control(command *exec.Cmd, e sandbox.Exec, master *os.File) (sandbox.ExecEnd, error) {
	if e.Started != nil {
		e.Started()
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	for {
		select {
		case err := <-ended:
			return endOf(command, err)
		case c, ok := <-e.Control:
			switch {
			case !ok:
				e.Control = nil
			case c.Resize != nil && master != nil:
				_ = resize(master, *c.Resize)
			case c.Signal > 0:
				_ = unix.Kill(-command.Process.Pid, unix.Signal(c.Signal)) // it may just have ended
			}
		}
	}
}

func endOf(command *exec.Cmd, err error) (sandbox.ExecEnd, error) {
	if command.ProcessState == nil {
		return sandbox.ExecEnd{}, fmt.Errorf("wait for the command: %w", err)
	}
	status, _ := command.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		signal := int32(status.Signal()) //nolint:gosec // at most 64
		return sandbox.ExecEnd{Code: 128 + signal, Signal: signal}, nil
	}
	return sandbox.ExecEnd{Code: int32(status.ExitStatus())}, nil //nolint:gosec // at most 255
}

// RootOf is where the command of a sandbox sees the host's files from.
func (d *Driver) RootOf(_ context.Context, id string) (string, error) {
	x, err := d.find(id)
	if err != nil {
		return "", err
	}
	if x.state() != sandbox.StateRunning {
		return "", records.Errorf(records.ClassConflict, "sandbox %s does not run", id)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return filepath.Join(procOf(x.supervisor), "root"), nil
}
