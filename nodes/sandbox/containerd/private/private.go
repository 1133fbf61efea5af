package private

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// Deadlines and pauses of a private containerd.
const (
	// ReadyMax bounds how long containerd may take until it answers.
	ReadyMax = 30 * time.Second
	// StopMax bounds how long it may take to end after TERM; then it is killed.
	StopMax         = 10 * time.Second
	RestartPauseMin = 500 * time.Millisecond
	RestartPauseMax = 30 * time.Second

	probeMax  = 2 * time.Second
	probeStep = 10 * time.Millisecond
)

// DefaultAddress is where a containerd of the host listens.
const DefaultAddress = "/run/containerd/containerd.sock"

// ErrMissing is returned when containerd or runc is not installed.
var ErrMissing = errors.New("not installed; on Debian: apt-get install containerd runc")

// Detect returns the address of the containerd that already runs on this host, if
// one answers at DefaultAddress.
func Detect(ctx context.Context) (address string, ok bool) {
	return DefaultAddress, answers(ctx, DefaultAddress) == nil
}

// Left tells whether an earlier daemon has left its containerd running in a directory:
// its sandboxes are there, whatever other containerd the host has by now.
func Left(dir string) bool {
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return false
	}
	proc, ok := find(places(absolute))
	if ok {
		proc.release()
		return true
	}
	_, _, ok = moved(places(absolute))
	return ok
}

// Daemon is a private containerd that runs. Its methods may be called from any
// goroutine.
type Daemon struct {
	config Config
	binary string
	paths  paths

	cancel context.CancelFunc // ends supervision
	kill   atomic.Bool        // set before cancel: end containerd too
	done   chan struct{}      // closed when the supervising goroutine has ended
}

// Start adopts the containerd that an earlier daemon left in this directory, or
// starts one, and returns when it answers. The error of a containerd that ends at
// once or does not answer within ReadyMax names its log file.
func Start(ctx context.Context, config Config) (*Daemon, error) {
	if config.Binary == "" {
		config.Binary = "containerd"
	}
	if config.OOMScore == 0 {
		config.OOMScore = DefaultOOMScore
	}
	if config.Log == nil {
		config.Log = zap.NewNop()
	}
	dir, err := filepath.Abs(config.Dir)
	if err != nil {
		return nil, fmt.Errorf("private containerd: %w", err)
	}
	d := &Daemon{config: config, paths: places(dir), done: make(chan struct{})}
	proc, adopted, err := d.adopt(ctx)
	if err != nil {
		return nil, err
	}
	if !adopted {
		// A second one would wait for the first one's lock of the same files, and what the
		// first one has, it looks for where the directory was.
		if pid, config, ok := moved(d.paths); ok {
			return nil, fmt.Errorf("the data directory was moved here from %s while its containerd (pid %d) was at work with containers of runs: move it back and start the node there. "+
				"When none of its runs is left in a container, the node ends its containerd as it stops, and the directory can be moved", filepath.Dir(filepath.Dir(config)), pid)
		}
		if d.binary, err = look(config.Binary); err != nil {
			return nil, err
		}
		if err := prepare(d.paths, config.OOMScore); err != nil {
			return nil, err
		}
		if proc, err = d.launch(ctx); err != nil {
			return nil, err
		}
	}
	// Supervision outlives the context of the start; Stop and Leave end it.
	supervision, cancel := context.WithCancel(context.WithoutCancel(ctx))
	d.cancel = cancel
	go d.supervise(supervision, proc)
	return d, nil
}

// look finds containerd, and makes sure of runc and the shim, whose absence would
// otherwise show at the first run only.
func look(binary string) (string, error) {
	path, err := exec.LookPath(binary)
	if err != nil {
		return "", fmt.Errorf("%s: %w", binary, ErrMissing)
	}
	for _, name := range []string{"runc", "containerd-shim-runc-v2"} {
		if _, err := exec.LookPath(name); err != nil {
			return "", fmt.Errorf("%s: %w", name, ErrMissing)
		}
	}
	return path, nil
}

// adopt takes over a containerd that lives. One that lives and does not answer is
// given ReadyMax: it may be starting.
func (d *Daemon) adopt(ctx context.Context) (*process, bool, error) {
	proc, ok := find(d.paths)
	if !ok {
		return nil, false, nil
	}
	if err := ready(ctx, d.paths, proc); err != nil {
		proc.release()
		if errors.Is(err, errEnded) {
			return nil, false, nil
		}
		return nil, false, fmt.Errorf("containerd of an earlier daemon (pid %d): %w", proc.pid, err)
	}
	if pid, ok := noted(d.paths); !ok || pid != proc.pid {
		if err := note(d.paths, proc.pid); err != nil {
			proc.release()
			return nil, false, err
		}
	}
	d.binary, _ = exec.LookPath(d.config.Binary)
	d.config.Log.Info("adopted the private containerd", zap.Int("pid", proc.pid), zap.String("address", d.paths.socket))
	return proc, true, nil
}

// launch starts containerd and returns when it answers.
func (d *Daemon) launch(ctx context.Context) (*process, error) {
	proc, err := spawn(d.binary, d.paths)
	if err != nil {
		return nil, err
	}
	if err := ready(ctx, d.paths, proc); err != nil {
		end(proc)
		proc.release()
		return nil, fmt.Errorf("containerd did not become ready (see %s): %w", d.paths.log, err)
	}
	d.config.Log.Info("started a private containerd", zap.Int("pid", proc.pid), zap.String("address", d.paths.socket))
	return proc, nil
}

// Address is the socket at which it listens.
func (d *Daemon) Address() string { return d.paths.socket }

// StateDir is its directory of what runs.
func (d *Daemon) StateDir() string { return d.paths.state }

// RootDir is its directory of what stays.
func (d *Daemon) RootDir() string { return d.paths.root }

// LogPath is the file with containerd's own log.
func (d *Daemon) LogPath() string { return d.paths.log }

// Stop ends containerd, and returns when it is gone. Commands that still run go
// on, without anyone at their side: use Leave while sandboxes live.
func (d *Daemon) Stop(ctx context.Context) error { return d.end(ctx, true) }

// Leave stops looking after containerd and lets it run, for the next daemon to
// adopt.
func (d *Daemon) Leave(ctx context.Context) error { return d.end(ctx, false) }

func (d *Daemon) end(ctx context.Context, kill bool) error {
	if kill {
		d.kill.Store(true)
	}
	d.cancel()
	select {
	case <-d.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop the private containerd: %w", ctx.Err())
	}
}

// supervise restarts containerd whenever it dies, until Stop or Leave.
func (d *Daemon) supervise(ctx context.Context, proc *process) {
	defer close(d.done)
	pause := RestartPauseMin
	for {
		if proc != nil {
			born := time.Now()
			if proc.wait(ctx) != nil {
				if d.kill.Load() {
					end(proc)
					d.clear()
				}
				proc.release()
				return
			}
			proc.release()
			if time.Since(born) > RestartPauseMax {
				pause = RestartPauseMin
			}
			d.config.Log.Warn("the private containerd ended, starting it again", zap.Int("pid", proc.pid), zap.Duration("pause", pause))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, RestartPauseMax)
		var err error
		if proc, err = d.launch(ctx); err != nil {
			proc = nil
			d.config.Log.Error("the private containerd can not be started", zap.Error(err), zap.Duration("next_try", pause))
		}
	}
}

// clear removes what tells the next daemon of a containerd that is gone.
func (d *Daemon) clear() {
	for _, path := range []string{d.paths.pid, d.paths.socket, d.paths.socket + ".ttrpc"} {
		_ = os.Remove(path)
	}
}

// end stops a process: TERM, and KILL after StopMax.
func end(proc *process) {
	_ = proc.signal(unix.SIGTERM)
	ctx, cancel := context.WithTimeout(context.Background(), StopMax)
	defer cancel()
	if proc.wait(ctx) == nil {
		return
	}
	_ = proc.signal(unix.SIGKILL)
	ctx, cancel = context.WithTimeout(context.Background(), StopMax)
	defer cancel()
	_ = proc.wait(ctx)
}

var errEnded = errors.New("it ended")

// ready returns when containerd answers.
func ready(ctx context.Context, p paths, proc *process) error {
	ctx, cancel := context.WithTimeout(ctx, ReadyMax)
	defer cancel()
	step := time.NewTicker(probeStep)
	defer step.Stop()
	for {
		if _, err := os.Stat(p.socket); err == nil && answers(ctx, p.socket) == nil {
			return nil
		}
		if proc.ended() {
			return errEnded
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-step.C:
		}
	}
}

// answers asks for the version: a socket alone may be of a containerd that is
// gone.
func answers(ctx context.Context, address string) error {
	if _, err := os.Stat(address); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, probeMax)
	defer cancel()
	client, err := containerd.New(address, containerd.WithTimeout(probeMax))
	if err != nil {
		return err
	}
	defer client.Close() //nolint:errcheck // a probe
	_, err = client.Version(ctx)
	return err
}
