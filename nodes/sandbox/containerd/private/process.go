package private

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is one life of containerd: our child, or one that an earlier daemon
// left running.
type process struct {
	pid    int
	pidfd  int
	handle *os.File // owns pidfd, and lets a wait be interrupted
	child  bool
}

// hold wraps a pidfd so that waiting on it needs no thread.
func hold(pid, pidfd int, child bool) *process {
	_ = unix.SetNonblock(pidfd, true)
	return &process{pid: pid, pidfd: pidfd, handle: os.NewFile(uintptr(pidfd), "pidfd"), child: child}
}

// spawn starts containerd in a session of its own, so that neither a Ctrl-C at the
// daemon's terminal nor the daemon's death reaches it.
func spawn(binary string, p paths) (*process, error) {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open containerd's log: %w", err)
	}
	defer log.Close()
	var pidfd int
	cmd := exec.Command(binary, "--config", p.config)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = "/"
	// Only what containerd, the shims and runc need: the daemon's environment may
	// hold secrets, and a variable like NOTIFY_SOCKET is meant for the daemon alone.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/root"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start containerd: %w", err)
	}
	pid := cmd.Process.Pid
	if pidfd < 0 {
		if pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			return nil, fmt.Errorf("hold containerd's process: %w", err)
		}
	}
	// The pidfd waits from here on, and can stop waiting, which Cmd.Wait can not.
	_ = cmd.Process.Release()
	proc := hold(pid, pidfd, true)
	if err := note(p, pid); err != nil {
		_ = proc.signal(unix.SIGKILL)
		_ = proc.wait(context.Background())
		proc.release()
		return nil, err
	}
	return proc, nil
}

// note writes the pid file.
func note(p paths, pid int) error {
	if err := os.WriteFile(p.pid, []byte(strconv.Itoa(pid)+"\n"), 0o600); err != nil {
		return fmt.Errorf("note containerd's process: %w", err)
	}
	return nil
}

// noted is the pid in the pid file.
func noted(p paths) (pid int, ok bool) {
	content, err := os.ReadFile(p.pid)
	if err != nil {
		return 0, false
	}
	pid, err = strconv.Atoi(strings.TrimSpace(string(content)))
	return pid, err == nil && pid > 1
}

// find holds the containerd that the pid file names, if it is alive and really
// runs with this configuration: a pid may have been given to another program. One that
// no pid file names is found by the files that it works on.
func find(p paths) (*process, bool) {
	if proc, ok := findNoted(p); ok {
		return proc, true
	}
	return unnoted(p)
}

func findNoted(p paths) (*process, bool) {
	pid, ok := noted(p)
	if !ok {
		return nil, false
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, false
	}
	proc := hold(pid, pidfd, false)
	if config := configOf(pid); config != p.config && !sameFile(config, p.config) {
		proc.release()
		return nil, false
	}
	return proc, true
}

// configOf is the configuration that a containerd was started with by spawn, empty for
// another program.
func configOf(pid int) string {
	cmdline, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return ""
	}
	args := strings.Split(string(cmdline), "\x00")
	if at := slices.Index(args, "--config"); at > 0 && at+1 < len(args) {
		return args[at+1]
	}
	return ""
}

// sameFile tells whether two paths, of which one may go through a link, are of one file.
func sameFile(a, b string) bool {
	ours, err := os.Stat(a)
	if err != nil {
		return false
	}
	theirs, err := os.Stat(b)
	return err == nil && os.SameFile(ours, theirs)
}

// moved returns the containerd that is at work on the files of a directory and was started
// for another: the directory was moved below it. One that the pid file of a copy names has
// its files elsewhere.
func moved(p paths) (pid int, config string, ok bool) {
	if pid, ok = noted(p); !ok {
		return 0, "", false
	}
	config = configOf(pid)
	root, err := filepath.EvalSymlinks(p.root)
	if err != nil || config == "" || config == p.config || sameFile(config, p.config) {
		return 0, "", false
	}
	open := "/proc/" + strconv.Itoa(pid) + "/fd"
	entries, err := os.ReadDir(open)
	if err != nil {
		return 0, "", false
	}
	for _, entry := range entries {
		if file, err := os.Readlink(filepath.Join(open, entry.Name())); err == nil && strings.HasPrefix(file, root+"/") {
			return pid, config, true
		}
	}
	return 0, "", false
}

// signal sends a signal to exactly this process. One that has ended is no error.
func (p *process) signal(sig unix.Signal) error {
	if err := unix.PidfdSendSignal(p.pidfd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal containerd: %w", err)
	}
	return nil
}

// wait returns nil when the process has ended, reaped if it was our child. One
// goroutine waits at a time.
func (p *process) wait(ctx context.Context) error {
	if err := p.handle.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("wait for containerd: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = p.handle.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	conn, err := p.handle.SyscallConn()
	if err != nil {
		return fmt.Errorf("wait for containerd: %w", err)
	}
	// A pidfd is readable once its process has ended.
	if err := conn.Read(func(uintptr) bool { return p.ended() }); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("wait for containerd: %w", err)
	}
	if p.child {
		_, _ = unix.Wait4(p.pid, nil, unix.WNOHANG, nil)
	}
	return nil
}

// ended tells whether the process has ended.
func (p *process) ended() bool {
	fds := []unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}} //nolint:gosec // a descriptor
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

func (p *process) release() { _ = p.handle.Close() }
