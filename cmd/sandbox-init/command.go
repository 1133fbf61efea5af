package main

import (
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/sandbox/guest/status"
)

// defaultPath is where a command is looked for when its environment has no PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// command is what a sandbox is there for.
type command struct {
	args []string
	env  []string
	// dir is the working directory; empty means the one that is.
	dir string
	// user is nil for the same one.
	user *syscall.Credential
	// files are its standard streams; without any it has those of this process.
	files []uintptr
	// stdin and terminal tell that it is given input (package input), and on a terminal.
	stdin, terminal bool
	commandInput
	// attr holds what is asked of its process besides.
	attr syscall.SysProcAttr
}

// start starts the command in a session of its own, from its working directory,
// which this process is in afterwards.
func (c *command) start() (pid int, stage status.Stage, err error) {
	if c.dir != "" {
		if err := unix.Chdir(c.dir); err != nil {
			return 0, status.StageChdir, err
		}
	}
	path, err := lookup(c.args[0], c.env)
	if err != nil {
		return 0, status.StageLookup, err
	}
	files := c.files
	if files == nil {
		files = []uintptr{0, 1, 2}
	}
	attr := c.attr
	attr.Setsid, attr.Credential = true, c.user
	pid, err = syscall.ForkExec(path, c.args, &syscall.ProcAttr{Env: c.env, Files: files, Sys: &attr})
	if err != nil {
		return 0, status.StageExec, err
	}
	return pid, status.StageNone, nil
}

// keepStderr leaves stderr to the command alone: what the runtime of this process says
// when it can not go on is none of the command's output.
func (c *command) keepStderr() error {
	kept, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return err
	}
	if c.files == nil {
		c.files = []uintptr{0}
	}
	if !c.terminal {
		c.files = []uintptr{c.files[0], 1, uintptr(kept)}
	}
	null, err := unix.Open("/dev/null", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		// An image's own /dev may lack it.
		return unix.Close(2)
	}
	defer unix.Close(null)
	return unix.Dup3(null, 2, 0)
}

// execFailed is the status of a command that never ran.
func execFailed(stage status.Stage, err error) status.Status {
	return status.Status{State: status.ExecFailed, Stage: stage, Value: errno(err), At: time.Now()}
}

// mountProc shows the processes of this PID namespace in /proc, and keeps this and
// all later mounts out of the host's namespace.
func mountProc() error {
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return err
	}
	return unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}

// lookup finds the file of a command as execvp does.
func lookup(command string, env []string) (string, error) {
	if strings.Contains(command, "/") {
		return command, executable(command)
	}
	if command == "" {
		return "", unix.ENOENT
	}
	path := defaultPath
	for _, v := range env {
		if value, ok := strings.CutPrefix(v, "PATH="); ok {
			path = value
			break
		}
	}
	var found error = unix.ENOENT
	for dir := range strings.SplitSeq(path, ":") {
		if dir == "" {
			dir = "."
		}
		file := filepath.Join(dir, command)
		if !strings.Contains(file, "/") {
			file = "./" + file
		}
		err := executable(file)
		if err == nil {
			return file, nil
		}
		if errors.Is(err, unix.EACCES) {
			found = unix.EACCES
		}
	}
	return "", found
}

// executable looks only at what exec would refuse for everybody.
func executable(file string) error {
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o111 == 0 {
		return unix.EACCES
	}
	return nil
}

func errno(err error) int {
	var e syscall.Errno
	if errors.As(err, &e) && e > 0 && e < 4096 {
		return int(e)
	}
	return int(unix.EIO)
}
