// Package logger is the process that writes a sandbox's log: containerd starts it
// (binary://) with the command's two pipes, and it outlives daemon and containerd.
//
// It lives until both pipes are at their end and never ends on a write error: a
// logger that ends early kills the command with SIGPIPE. Its run directory holds
//
//	logger.pid    "PID START\n" (package pid), from before it says that it is ready
//	logger.sock   a stream socket: who sends FlushRequest gets, once the log holds
//	              all that stood in the pipes and an end mark, "complete\n",
//	              "incomplete\n", or "unwritten\n" if output is missing because it
//	              could not be written
package logger

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/logs"
	"github.com/errand-run/errand/nodes/sandbox/guest/pid"
	"github.com/errand-run/errand/nodes/sandbox/guest/status"
)

const (
	// PIDFile is the name of the file in the run directory that says who the logger is.
	PIDFile = "logger.pid"
	// Socket is the name of the socket beside it.
	Socket = "logger.sock"
	// FlushRequest is what a client of the socket sends.
	FlushRequest = "flush\n"
	// FlushLimit is how long a logger reads the pipes dry at most.
	FlushLimit = 2 * time.Second

	answerComplete   = "complete\n"
	answerIncomplete = "incomplete\n"
	answerUnwritten  = "unwritten\n"
	// termLimit is how long a logger that was told to end waits for the pipes' ends.
	termLimit = 5 * time.Second
	// clientLimit bounds how long a client of the socket may take to speak, while output
	// goes on, and answerLimit how long it may take to take the answer. On a busy machine
	// one that has connected may wait long for a processor.
	clientLimit = FlushLimit
	answerLimit = 200 * time.Millisecond
	// againEvery is the pause before a logger that has hung up is asked again.
	againEvery = 10 * time.Millisecond
)

// Config is what a logger is started with.
type Config struct {
	// LogPath is the path of the log (package logs), RunDir the directory of socket
	// and pid file, which must exist.
	LogPath, RunDir string
	// SegmentBytes and Segments are those of logs.WriterOptions; 0 means the default.
	SegmentBytes int64
	Segments     int
	// Status is the path of init's status file (package status), or empty. While
	// nothing stands in it no command has begun, and what comes is not logged: the
	// runtime has the same pipes, and says there why it can not start init.
	Status string
	// Fence is the path of the page by which the node's sandboxes are killed (page.Path),
	// and Parent and Group name the cgroup of this one below CgroupRoot. Without a fence
	// all are empty.
	Fence, CgroupRoot, Parent, Group string
}

// Encode returns the config as the one argument of "sandbox-init log".
func (c Config) Encode() (string, error) {
	paths := []string{c.LogPath, c.RunDir}
	if c.Status != "" {
		paths = append(paths, c.Status)
	}
	if c.Fence != "" {
		paths = append(paths, c.Fence, c.CgroupRoot)
	}
	for _, path := range paths {
		if !filepath.IsAbs(path) || strings.ContainsAny(path, "\n\x00") {
			return "", fmt.Errorf("encode logger config: not an absolute path without line breaks: %q", path)
		}
	}
	text := fmt.Sprintf("log=%s\nrun=%s\nsegment=%d\nsegments=%d\n", c.LogPath, c.RunDir, c.SegmentBytes, c.Segments)
	if c.Status != "" {
		text += "status=" + c.Status + "\n"
	}
	if c.Fence != "" {
		if strings.ContainsAny(c.Parent+c.Group, "/\n\x00") {
			return "", fmt.Errorf("encode logger config: not the names of cgroups: %q, %q", c.Parent, c.Group)
		}
		text += fmt.Sprintf("fence=%s\ncgroups=%s\nparent=%s\ngroup=%s\n", c.Fence, c.CgroupRoot, c.Parent, c.Group)
	}
	return text, nil
}

// ParseConfig reads what Encode made.
func ParseConfig(s string) (Config, error) {
	var c Config
	for line := range strings.SplitSeq(strings.TrimSuffix(s, "\n"), "\n") {
		key, value, _ := strings.Cut(line, "=")
		var err error
		switch key {
		case "log":
			c.LogPath = value
		case "run":
			c.RunDir = value
		case "status":
			c.Status = value
		case "fence":
			c.Fence = value
		case "cgroups":
			c.CgroupRoot = value
		case "parent":
			c.Parent = value
		case "group":
			c.Group = value
		case "segment":
			c.SegmentBytes, err = strconv.ParseInt(value, 10, 64)
		case "segments":
			c.Segments, err = strconv.Atoi(value)
		default:
			err = errors.New("unknown key")
		}
		if err != nil {
			return Config{}, fmt.Errorf("logger config: %.40q: %w", key, err)
		}
	}
	if !filepath.IsAbs(c.LogPath) || !filepath.IsAbs(c.RunDir) {
		return Config{}, errors.New("logger config: log and run must be absolute paths")
	}
	return c, nil
}

// Run writes the log until both pipes are at their end. It calls ready as soon as it
// is able to read, also when the log can not be written.
func Run(c Config, stdout, stderr int, ready func()) error {
	protect()
	terminated, err := onTerm()
	if err != nil {
		return err
	}
	lookout := c.watchFence()
	defer lookout.Close()
	w, err := logs.Create(c.LogPath, logs.WriterOptions{SegmentBytes: c.SegmentBytes, Segments: c.Segments})
	if err != nil {
		// Output is read and lost rather than the command killed by SIGPIPE. There is
		// no pid file and no socket, so the log is known to be incomplete.
		ready()
		discard(stdout, stderr)
		return err
	}
	listener, err := listen(c.RunDir)
	if err != nil {
		listener = -1
	}
	pump := NewPump(w, stdout, stderr)
	if c.Status != "" {
		pump.begun = func() bool {
			// One that can not be read or makes no sense tells nothing against the output.
			s, err := status.Read(c.Status)
			return err != nil || s.State != status.Empty
		}
	}
	writePID(c.RunDir)
	ready()
	drained := serve(pump, w, listener, terminated)
	w.End(drained)
	w.Close()
	pump.Close()
	return err
}

// serve pumps until the pipes' end and answers flush requests.
func serve(pump *Pump, w *logs.Writer, listener, terminated int) (drained bool) {
	for pump.Open() {
		ready, _ := pump.Turn(-1, listener, terminated)
		if ready[0] {
			answer(pump, w, listener)
		}
		if ready[1] {
			return pump.DrainToEnd(termLimit)
		}
	}
	return true
}

// answer serves one client of the socket.
func answer(pump *Pump, w *logs.Writer, listener int) {
	fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(answerLimit.Nanoseconds())
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit)
	if !pump.turnUntil(fd, clientLimit) {
		return
	}
	var b [len(FlushRequest)]byte
	if n, err := read(fd, b[:]); err != nil || string(b[:n]) != FlushRequest {
		return
	}
	reply := answerIncomplete
	switch complete := w.End(pump.Drain(FlushLimit)); {
	case complete:
		reply = answerComplete
	case w.Unwritten():
		reply = answerUnwritten
	}
	_ = uninterrupted(func() error { return unix.Sendto(fd, []byte(reply), unix.MSG_NOSIGNAL, nil) })
}

// uninterrupted repeats a call that a signal cut: calls on a socket with a timeout are
// never taken up again by the kernel, and the runtime sends itself signals.
func uninterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func read(fd int, b []byte) (n int, err error) {
	err = uninterrupted(func() error {
		n, err = unix.Read(fd, b)
		return err
	})
	return max(n, 0), err
}

// protect keeps the logger away from the out-of-memory killer, as far as it may.
func protect() {
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-999"), 0)
}

// onTerm returns a descriptor that becomes readable when the logger is told to end.
// Nothing else that may be sent to it ends it.
func onTerm() (fd int, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, fmt.Errorf("start logger: %w", err)
	}
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGPIPE, unix.SIGQUIT)
	c := make(chan os.Signal, 1)
	signal.Notify(c, unix.SIGTERM)
	go func() {
		<-c
		_ = unix.Close(p[1])
	}()
	return p[0], nil
}

func discard(fds ...int) {
	done := make(chan struct{})
	for _, fd := range fds {
		go func() {
			b := make([]byte, logs.MaxRecord)
			for {
				if n, err := unix.Read(fd, b); n == 0 || (err != nil && !errors.Is(err, unix.EINTR)) {
					break
				}
			}
			done <- struct{}{}
		}()
	}
	for range fds {
		<-done
	}
}

func writePID(dir string) {
	ref, err := pid.Of(os.Getpid())
	if err != nil {
		return
	}
	temp := filepath.Join(dir, PIDFile+".new")
	if os.WriteFile(temp, []byte(ref.String()+"\n"), 0o600) == nil {
		_ = os.Rename(temp, filepath.Join(dir, PIDFile))
	}
}

// address returns the socket's address, which stays short however long the
// directory's path is, and the descriptor that it needs while it is used.
func address(dir string) (*unix.SockaddrUnix, int, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, -1, err
	}
	return &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", fd, Socket)}, fd, nil
}

func listen(dir string) (int, error) {
	addr, dirFD, err := address(dir)
	if err != nil {
		return -1, fmt.Errorf("listen for flush requests: %w", err)
	}
	defer unix.Close(dirFD)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("listen for flush requests: %w", err)
	}
	_ = os.Remove(filepath.Join(dir, Socket))
	if err = unix.Bind(fd, addr); err == nil {
		err = unix.Listen(fd, 8)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("listen for flush requests: %w", err)
	}
	return fd, nil
}

// ErrNoLogger is returned when no logger listens in the run directory.
var ErrNoLogger = errors.New("no logger")

// ErrUnwritten is returned when the log has come to its end and lacks output that could
// not be written.
var ErrUnwritten = errors.New("output could not be written to the log")

// errHungUp is returned when the logger has closed the connection without an answer: it was
// about to end, or the request came too late.
var errHungUp = errors.New("the logger has hung up")

// Flush asks the logger of a run directory to read its pipes dry and to write the
// end mark. complete tells whether the log then holds everything. It takes no
// longer than FlushLimit and half a second, whatever the context says.
func Flush(ctx context.Context, runDir string) (complete bool, err error) {
	deadline := time.Now().Add(FlushLimit + 500*time.Millisecond)
	if earlier, ok := ctx.Deadline(); ok && earlier.Before(deadline) {
		deadline = earlier
	}
	if err := ctx.Err(); err != nil || time.Until(deadline) <= 0 {
		return false, fmt.Errorf("flush log: %w", context.DeadlineExceeded)
	}
	addr, dirFD, err := address(runDir)
	if errors.Is(err, unix.ENOENT) {
		return false, ErrNoLogger
	}
	if err != nil {
		return false, fmt.Errorf("flush log: %w", err)
	}
	defer unix.Close(dirFD)
	for {
		complete, err := ask(addr, deadline)
		if !errors.Is(err, errHungUp) || time.Until(deadline) <= againEvery {
			return complete, err
		}
		// It says the same again, or is gone: then its log has an end.
		select {
		case <-time.After(againEvery):
		case <-ctx.Done():
			return false, fmt.Errorf("flush log: %w", context.Cause(ctx))
		}
	}
}

// ask sends one request and returns what the answer says.
func ask(addr *unix.SockaddrUnix, deadline time.Time) (complete bool, err error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("flush log: %w", err)
	}
	defer unix.Close(fd)
	timeout := unix.NsecToTimeval(max(time.Until(deadline), time.Millisecond).Nanoseconds())
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout)
	if err := uninterrupted(func() error { return unix.Connect(fd, addr) }); err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
			return false, ErrNoLogger
		}
		return false, fmt.Errorf("flush log: %w", err)
	}
	var b [64]byte
	n := 0
	err = uninterrupted(func() error { return unix.Sendto(fd, []byte(FlushRequest), unix.MSG_NOSIGNAL, nil) })
	if err == nil {
		n, err = read(fd, b[:])
	}
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || err == nil && n == 0 {
		return false, fmt.Errorf("flush log: %w", errHungUp)
	}
	if err != nil {
		return false, fmt.Errorf("flush log: %w", err)
	}
	if string(b[:n]) == answerUnwritten {
		return false, ErrUnwritten
	}
	return string(b[:n]) == answerComplete, nil
}
