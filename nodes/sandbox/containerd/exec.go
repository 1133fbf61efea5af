package containerd

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/containerd/quiet"
)

var (
	_ sandbox.Execs = (*Driver)(nil)
	_ sandbox.Roots = (*Driver)(nil)
)

const (
	// execMax bounds each call about a command beside the sandbox's own.
	execMax = 10 * time.Second
	// outputMax is how long the output of a command that has ended may stay open in the
	// hands of its children.
	outputMax = 2 * time.Second
)

// Exec runs a command in a sandbox through its runtime, which gives it the sandbox's
// namespaces and privileges, and through init, which puts it under the filter.
func (d *Driver) Exec(ctx context.Context, id string, e sandbox.Exec) (sandbox.ExecEnd, error) {
	ctx = quiet.Context(ctx)
	input := &ending{Reader: e.Stdin, ended: make(chan struct{})}
	added, exited, err := d.startExec(ctx, id, e, input)
	if added != nil {
		defer d.forget(added)
	}
	if err != nil {
		return sandbox.ExecEnd{}, err
	}
	if e.Started != nil {
		e.Started()
	}
	return d.follow(ctx, added, exited, input.ended, e)
}

// startExec starts the command when it is its turn. What it returns is to be forgotten in
// the end, after an error too.
func (d *Driver) startExec(ctx context.Context, id string, e sandbox.Exec, input *ending) (client.Process, <-chan client.ExitStatus, error) {
	waiting, stop := context.WithTimeout(ctx, execTurnMax)
	defer stop()
	leave, err := d.execs.take(waiting, id)
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	step, cancel := own(ctx, execMax)
	defer cancel()
	container, err := d.client.LoadContainer(step, id)
	if errdefs.IsNotFound(err) {
		return nil, nil, records.Errorf(records.ClassNotFound, "there is no sandbox %s", id)
	}
	if err != nil {
		return nil, nil, filtered(err, "exec in", id)
	}
	task, err := container.Task(step, nil)
	if err != nil {
		return nil, nil, d.execError(id, err)
	}
	process, err := d.execProcess(step, container, int(task.Pid()), e)
	if err != nil {
		return nil, nil, err
	}
	streams := []cio.Opt{cio.WithStreams(nil, e.Stdout, e.Stderr), cio.WithFIFODir(d.dir(id))}
	if e.Stdin != nil {
		streams[0] = cio.WithStreams(input, e.Stdout, e.Stderr)
	}
	if e.Terminal != nil {
		streams = append(streams, cio.WithTerminal)
	}
	added, err := task.Exec(step, "x"+strings.ToLower(rand.Text()), process, cio.NewCreator(streams...))
	if err != nil {
		return nil, nil, d.execError(id, err)
	}
	exited, err := added.Wait(quiet.Context(d.open))
	if err == nil {
		err = added.Start(step)
	}
	if err != nil {
		return added, nil, d.execError(id, err)
	}
	return added, exited, nil
}

// forget removes what the runtime and containerd keep of a command, killed if it still
// runs.
func (d *Driver) forget(added client.Process) {
	ctx, cancel := own(quiet.Context(d.open), execMax)
	defer cancel()
	_, _ = added.Delete(ctx, client.WithProcessKill) // it goes with the sandbox at the latest
}

func (d *Driver) execError(id string, err error) error {
	err = native(err)
	if errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) || strings.Contains(err.Error(), "not running") ||
		strings.Contains(err.Error(), "stopped") {
		return records.Errorf(records.ClassConflict, "sandbox %s does not run", id)
	}
	if classOf(err) == records.ClassDeadline {
		return records.Errorf(records.ClassDeadline, "exec in %s: the runtime has not answered within %s; the command may have begun, and is killed", id, execMax)
	}
	return filtered(err, "exec in", id)
}

// execProcess is the process that becomes the command.
func (d *Driver) execProcess(ctx context.Context, container client.Container, pid int, e sandbox.Exec) (*specs.Process, error) {
	spec, err := container.Spec(ctx)
	if err != nil {
		return nil, filtered(err, "exec in", container.ID())
	}
	if i := slices.IndexFunc(spec.Mounts, func(m specs.Mount) bool { return m.Destination == insideInit }); i >= 0 {
		if init := spec.Mounts[i].Source; init != d.config.Init && !enters(ctx, init) {
			return nil, records.Errorf(records.ClassInvalid, "the sandbox was made by an earlier version of Errand, whose sandboxes let no other command in")
		}
	}
	process := *spec.Process
	dir := e.WorkingDir
	if i := slices.Index(process.Args, "--chdir"); dir == "" && i > 0 && i < slices.Index(process.Args, "--") {
		dir = process.Args[i+1]
	}
	args := []string{insideInit, "enter"}
	if dir != "" {
		args = append(args, "--chdir", dir)
	}
	if slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool { return m.Destination == insideFilter }) {
		args = append(args, "--filter", insideFilter)
	}
	process.Args = append(append(args, "--"), e.Command...)
	process.Env = append(slices.Clone(process.Env), e.Env...)
	if e.User != "" {
		found, known := numeric(e.User)
		if !known {
			if found, err = lookUp(rootOf(pid), e.User); err != nil {
				var unfit *unfitError
				if errors.As(err, &unfit) {
					return nil, records.Errorf(records.ClassInvalid, "look up user %q in the sandbox: %w", e.User, unfit)
				}
				return nil, records.Errorf(records.ClassInvalid, "user %q is unknown in the sandbox", e.User)
			}
		}
		process.User = specs.User{UID: found.uid, GID: found.gid, AdditionalGids: found.groups}
	}
	process.Terminal = e.Terminal != nil
	if e.Terminal != nil {
		process.ConsoleSize = &specs.Box{Height: uint(e.Terminal.Rows), Width: uint(e.Terminal.Columns)}
	}
	return &process, nil
}

// enters tells whether an init can become a command beside that of its sandbox: one of an
// earlier version does not know the word. It is asked for no command, so it does nothing.
func enters(ctx context.Context, init string) bool {
	said, _ := exec.CommandContext(ctx, init, "enter").CombinedOutput()
	return !strings.Contains(string(said), "unknown mode")
}

// follow does what comes while the command runs and returns how it has ended.
func (d *Driver) follow(ctx context.Context, added client.Process, exited <-chan client.ExitStatus, inputEnded <-chan struct{}, e sandbox.Exec) (sandbox.ExecEnd, error) {
	step := func(do func(context.Context) error) {
		within, cancel := own(ctx, execMax)
		defer cancel()
		_ = do(within) // it may just have ended, and then its end comes
	}
	if e.Terminal != nil {
		step(func(ctx context.Context) error {
			return added.Resize(ctx, uint32(e.Terminal.Columns), uint32(e.Terminal.Rows))
		})
	}
	canceled := ctx.Done()
	for {
		select {
		case status := <-exited:
			return d.execEnd(added, status)
		case <-canceled:
			canceled = nil
			step(func(ctx context.Context) error { return added.Kill(ctx, unix.SIGKILL) })
		case <-inputEnded:
			inputEnded = nil
			step(func(ctx context.Context) error { return added.CloseIO(ctx, client.WithStdinCloser) })
		case c, ok := <-e.Control:
			switch {
			case !ok:
				e.Control = nil
			case c.Resize != nil && e.Terminal != nil:
				step(func(ctx context.Context) error {
					return added.Resize(ctx, uint32(c.Resize.Columns), uint32(c.Resize.Rows))
				})
			case c.Signal > 0:
				step(func(ctx context.Context) error { return added.Kill(ctx, unix.Signal(c.Signal)) })
			}
		}
	}
}

// execEnd waits for the rest of the output.
func (d *Driver) execEnd(added client.Process, status client.ExitStatus) (sandbox.ExecEnd, error) {
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		added.IO().Wait()
	}()
	select {
	case <-drained:
	case <-time.After(outputMax):
		added.IO().Cancel()
		<-drained
	}
	code, _, err := status.Result()
	if err != nil {
		return sandbox.ExecEnd{}, records.Errorf(records.ClassUnavailable, "wait for the command: %s", cause(native(err)))
	}
	// The runtime says 128 + signal too where a command has ended so by itself.
	return sandbox.ExecEnd{Code: int32(code)}, nil //nolint:gosec // a code is at most 255
}

// ending tells of the end of a reader.
type ending struct {
	io.Reader
	ended chan struct{}
}

func (r *ending) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil {
		select {
		case <-r.ended:
		default:
			close(r.ended)
		}
	}
	return n, err
}

func rootOf(pid int) string { return filepath.Join("/proc", strconv.Itoa(pid), "root") }

// RootOf is where the root of a sandbox is seen from outside.
func (d *Driver) RootOf(ctx context.Context, id string) (string, error) {
	process, err := d.ask(quiet.Context(ctx), id)
	if errdefs.IsNotFound(err) || err == nil && process.GetPid() == 0 {
		return "", records.Errorf(records.ClassConflict, "sandbox %s does not run", id)
	}
	if err != nil {
		return "", filtered(err, "root of", id)
	}
	if !inGroup(int(process.GetPid()), d.parent.Group(id).Path()) {
		return "", records.Errorf(records.ClassConflict, "sandbox %s does not run", id)
	}
	return rootOf(int(process.GetPid())), nil
}
