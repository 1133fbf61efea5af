package private

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
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
	if err := os.WriteFile(p.pid, []byte(strconv.Itoa(pid)+"\n"), 0o600); err != nil {
		_ = proc.signal(unix.SIGKILL)
		_ = proc.wait(context.Background())
		proc.release()
		return nil, fmt.Errorf("note containerd's process: %w", err)
	}
	return proc, nil
}

// find holds the containerd that the pid file names, if it is alive and really
// runs with this configuration: a pid may have been given to another program.
func find(p paths) (*process, bool) {
	content, err := os.ReadFile(p.pid)
	if err != nil {
		return nil, false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil || pid <= 1 {
		return nil, false
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, false
	}
	proc := hold(pid, pidfd, false)
	cmdline, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil || !strings.Contains("\x00"+string(cmdline), "\x00"+p.config+"\x00") {
		proc.release()
		return nil, false
	}
	return proc, true
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
