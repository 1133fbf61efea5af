package main

import (
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/sandbox/guest/status"
)

// defaultPath is where a command is looked for when its environment has no PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// initOptions are the arguments of the init mode:
//
//	--status FILE   the preallocated status file (required)
//	--chdir DIR     the command's working directory
//	--user U:G[,G]  the command's uid, gid and other groups, all numbers
//	--proc          mount a /proc of the PID namespace; needs a mount namespace
//	--wait FD       start nothing before a byte comes from FD; none comes: end
//	--notify FD     close FD when "running" or "exec-failed" is in the file
//	--no-sync       leave it to others to make the status durable
//	--              what follows is the command and its arguments
//
// The environment is the command's own.
type initOptions struct {
	status  string
	chdir   string
	user    *syscall.Credential
	proc    bool
	wait    int
	notify  int
	sync    bool
	command []string
}

func parseInit(args []string) (initOptions, error) {
	o := initOptions{wait: -1, notify: -1, sync: true}
	for len(args) > 0 {
		name := args[0]
		args = args[1:]
		switch name {
		case "--":
			o.command = args
			if o.status == "" || len(args) == 0 {
				return o, errors.New("init needs --status and a command")
			}
			return o, nil
		case "--proc":
			o.proc = true
			continue
		case "--no-sync":
			o.sync = false
			continue
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
			o.chdir = value
		case "--user":
			o.user, err = parseUser(value)
		case "--wait":
			o.wait, err = strconv.Atoi(value)
		case "--notify":
			o.notify, err = strconv.Atoi(value)
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
	o, err := parseInit(args)
	if err != nil {
		fail("%v", err)
	}
	for _, fd := range []int{o.wait, o.notify} {
		if fd >= 0 {
			unix.CloseOnExec(fd)
		}
	}
	closeInherited(3)
	if !awaited(o.wait) {
		return exitSetup
	}
	file, err := status.Open(o.status)
	if err == nil {
		err = file.Write(status.Status{State: status.Starting, At: time.Now()})
	}
	if err != nil {
		fail("%v", err)
	}
	// Orphans come to this process also where it is not PID 1.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

	f := newForwarder()
	pid, stage, err := start(o)
	if err != nil {
		s := status.Status{State: status.ExecFailed, Stage: stage, Value: errno(err), At: time.Now()}
		if settle(file, s, o) != nil {
			return exitSetup
		}
		return execCode(s.Value)
	}
	started := time.Now()
	err = file.Write(status.Status{State: status.Running, StartedAt: started, At: started})
	if err != nil {
		_ = unix.Kill(-pid, unix.SIGKILL)
	}
	if o.notify >= 0 {
		_ = unix.Close(o.notify)
	}
	f.begin(pid)
	ended := reap(pid, f.end)
	ended.StartedAt = started
	if settle(file, ended, o) != nil {
		return exitSetup
	}
	return ended.ExitCode()
}

// awaited waits for the word that the command may start.
func awaited(fd int) bool {
	if fd < 0 {
		return true
	}
	defer unix.Close(fd)
	var b [1]byte
	for {
		n, err := unix.Read(fd, b[:])
		if err == unix.EINTR {
			continue
		}
		return n == 1
	}
}

// settle writes the last status.
func settle(file *status.File, s status.Status, o initOptions) error {
	err := file.Write(s)
	if err == nil && o.sync {
		err = file.Sync()
	}
	if cerr := file.Close(); err == nil {
		err = cerr
	}
	if o.notify >= 0 && s.State == status.ExecFailed {
		_ = unix.Close(o.notify)
	}
	return err
}

// start starts the command in a session of its own.
func start(o initOptions) (pid int, stage status.Stage, err error) {
	if o.proc {
		if err := mountProc(); err != nil {
			return 0, status.StageMount, err
		}
	}
	if o.chdir != "" {
		if err := unix.Chdir(o.chdir); err != nil {
			return 0, status.StageChdir, err
		}
	}
	path, err := lookup(o.command[0])
	if err != nil {
		return 0, status.StageLookup, err
	}
	pid, err = syscall.ForkExec(path, o.command, &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setsid: true, Credential: o.user},
	})
	if err != nil {
		return 0, status.StageExec, err
	}
	return pid, status.StageNone, nil
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
func lookup(command string) (string, error) {
	if strings.Contains(command, "/") {
		return command, executable(command)
	}
	if command == "" {
		return "", unix.ENOENT
	}
	path, ok := os.LookupEnv("PATH")
	if !ok {
		path = defaultPath
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

// execCode is the code by which shells tell the same.
func execCode(errno int) int {
	if syscall.Errno(errno) == unix.ENOENT {
		return 127
	}
	return 126
}

// reap waits for every child until the command has ended, and calls ended before
// its number can be used again.
func reap(pid int, ended func()) status.Status {
	for {
		var ws unix.WaitStatus
		got, err := unix.Wait4(-1, &ws, 0, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			// Nobody else waits for the command, so this can not be.
			fail("wait: %v", err)
		}
		if got != pid || !(ws.Exited() || ws.Signaled()) {
			continue
		}
		ended()
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

// forwarder passes signals on to the command's process group. Those that come
// before the command runs are kept for it.
type forwarder struct {
	signals chan os.Signal
	mu      sync.Mutex
	ended   bool
}

func newForwarder() *forwarder {
	f := &forwarder{signals: make(chan os.Signal, 64)}
	signal.Notify(f.signals, forwarded...)
	return f
}

func (f *forwarder) begin(pid int) {
	go func() {
		for s := range f.signals {
			number, ok := s.(syscall.Signal)
			if !ok {
				continue
			}
			f.mu.Lock()
			if !f.ended {
				_ = unix.Kill(-pid, number)
			}
			f.mu.Unlock()
		}
	}()
}

func (f *forwarder) end() {
	f.mu.Lock()
	f.ended = true
	f.mu.Unlock()
}
