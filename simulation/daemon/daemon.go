// Package daemon starts real errand-node processes and drives them as their users
// do: over the API, by signals and by the command line. The benchmarks are built
// on it, and its tests are Errand's end-to-end tests.
package daemon

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/errand-run/errand/messages/errand/v1/errandv1connect"
)

// How long a daemon may take to be ready and to stop.
const (
	readyDeadline = 5 * time.Minute
	stopDeadline  = 60 * time.Second
	// connectionsMax is how many connections a daemon's clients keep open.
	connectionsMax = 256
)

// Options say which daemon to start.
type Options struct {
	// Binary is the path of errand-node.
	Binary string
	// Data is its data directory; the caller's to remove.
	Data string
	// Flags come after --data and --listen.
	Flags []string
	// Listen is a loopback address; a free port when empty.
	Listen string
	// Environment is added to this process's for it, each as NAME=VALUE.
	Environment []string
	// Stderr receives its log.
	Stderr io.Writer
	// OwnGroup puts it into a process group of its own, where what a terminal sends to who
	// starts it does not reach it.
	OwnGroup bool
}

// Daemon is one running errand-node. Its methods are for one goroutine.
type Daemon struct {
	// Address is its API, as a URL.
	Address string
	// Ready is the time from exec to its ready line.
	Ready time.Duration
	// Runs, Nodes and Images are clients of its API.
	Runs   errandv1connect.RunServiceClient
	Nodes  errandv1connect.NodeServiceClient
	Images errandv1connect.ImageServiceClient

	command *exec.Cmd
	// ended is closed when the process has, as fate says.
	ended chan struct{}
	fate  error
}

// awaitEnd returns how the process has ended once it has.
func (d *Daemon) awaitEnd() error {
	<-d.ended
	return d.fate
}

var readyLine = regexp.MustCompile(`API (http://[^,]+),`)

// Start starts a daemon and returns when it is ready.
func Start(ctx context.Context, o Options) (*Daemon, error) {
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	args := append([]string{"--data", o.Data, "--listen", o.Listen}, o.Flags...)
	d := &Daemon{command: exec.Command(o.Binary, args...), ended: make(chan struct{})}
	d.command.Env = append(os.Environ(), o.Environment...)
	d.command.Stderr = o.Stderr
	d.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: o.OwnGroup}
	output, err := d.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := d.command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Binary, err)
	}
	line := make(chan string, 1)
	go func() {
		reader := bufio.NewReader(output)
		text, err := reader.ReadString('\n')
		if err == nil {
			line <- text
			_, err = io.Copy(io.Discard, reader)
		}
		close(line)
		d.fate = errors.Join(ignoreEOF(err), d.command.Wait())
		close(d.ended)
	}()
	ctx, cancel := context.WithTimeout(ctx, readyDeadline)
	defer cancel()
	select {
	case text, ok := <-line:
		match := readyLine.FindStringSubmatch(text)
		if !ok || match == nil {
			d.command.Process.Kill() //nolint:errcheck // it may have ended already
			return nil, errors.Join(fmt.Errorf("errand-node said %q instead of being ready", text), d.awaitEnd())
		}
		d.Ready, d.Address = time.Since(begin), match[1]
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("errand-node is not ready: %w", ctx.Err()), d.Kill())
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connectionsMax}}
	d.Runs = errandv1connect.NewRunServiceClient(client, d.Address)
	d.Nodes = errandv1connect.NewNodeServiceClient(client, d.Address)
	d.Images = errandv1connect.NewImageServiceClient(client, d.Address)
	return d, nil
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// PID is the daemon's process id.
func (d *Daemon) PID() int { return d.command.Process.Pid }

// Stop asks the daemon to end, as systemd would, and waits for it. Its sandboxes
// go on.
func (d *Daemon) Stop() error {
	if err := d.command.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop errand-node: %w", errors.Join(err, d.awaitEnd()))
	}
	select {
	case <-d.ended:
		return d.fate
	case <-time.After(stopDeadline):
		return errors.Join(fmt.Errorf("errand-node did not stop within %s", stopDeadline), d.Kill())
	}
}

// Kill ends the daemon at once, as a crash would.
func (d *Daemon) Kill() error {
	if err := d.command.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill errand-node: %w", err)
	}
	var exit *exec.ExitError
	if err := d.awaitEnd(); err != nil && !errors.As(err, &exit) {
		return err
	}
	return nil
}

// ResidentBytes is the daemon's resident memory.
func (d *Daemon) ResidentBytes() (int64, error) {
	path := filepath.Join("/proc", strconv.Itoa(d.PID()), "status")
	status, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("no VmRSS in %s", path)
}

// Probe gets a URL and returns an error unless the answer is 200.
func Probe(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err = errors.Join(err, answer.Body.Close()); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s: %s", url, answer.Status, body)
	}
	return nil
}
