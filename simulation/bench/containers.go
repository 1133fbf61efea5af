package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/contrib/seccomp"
	containerd "github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	runtime "github.com/opencontainers/runtime-spec/specs-go"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// containerSubmitters are two per core of a machine of two.
const containerSubmitters = 4

// containers measures whole runs in containers against plain calls of a containerd
// client, in turn on the same containerd. The client keeps no record, tells nobody,
// starts no init that witnesses the end and survives no crash. Bare, its container has
// no seccomp filter, the capabilities that containerd gives by itself, and no output;
// alike, it has the isolation of ours, and a file that the shim copies the output to.
func containers(ctx context.Context, s sizes) ([]row, error) {
	perSecond := row{What: fmt.Sprintf("runs of `true` in containers, %d submitters", containerSubmitters), Unit: "/s"}
	bare := row{What: "containers per container of plain client calls", Unit: "x", Bar: atLeast(0.9)}
	alike := row{What: "the same, isolated alike and with output to a file", Unit: "x", Bar: atLeast(0.9)}
	d, err := startDaemon(ctx, "--drivers", "containerd", "--containerd", "private")
	if err != nil {
		bare.fail(err)
		alike.fail(err)
		return []row{bare, alike}, nil
	}
	err = d.containersInTurn(ctx, s, &perSecond, &bare, &alike)
	return []row{perSecond, bare, alike}, errors.Join(err, d.stop())
}

func (d *benchDaemon) containersInTurn(ctx context.Context, s sizes, perSecond, bare, alike *row) (err error) {
	archive, err := d.importBusybox(ctx)
	if err != nil {
		return err
	}
	if _, err := timed(ctx, []string{"ctr", "--address", d.containerdSocket(), "--namespace", plainNamespace, "images", "import", archive}); err != nil {
		return err
	}
	plain, err := newPlain(ctx, d.containerdSocket())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plain.client.Close()) }()
	like := &plainAlike{plain: plain, dir: d.dir}
	sides := []struct {
		once func(context.Context, int) error
		row  *row
		rate []float64
		cost costs
	}{
		{once: runOf(d, &errandv1.RunSpec{Driver: "containerd", Image: "busybox", Command: []string{"/bin/true"}}), row: perSecond},
		{once: plain.run, row: bare},
		{once: like.run, row: alike},
	}
	for round := range s.rounds + 1 {
		for turn := range sides {
			// Who comes first differs from round to round.
			side := &sides[(turn+round)%len(sides)]
			var cost costs
			r, err := cost.measured(d, func() (rate, error) { return drive(ctx, containerSubmitters, s.slice, side.once) })
			if err != nil {
				return err
			}
			if round > 0 { // all warm up
				side.cost.add(cost)
				side.rate = append(side.rate, r.perSecond())
			}
		}
	}
	perSecond.Values = sides[0].rate
	perSecond.Note = sides[0].cost.note()
	for _, side := range sides[1:] {
		for round, theirs := range side.rate {
			side.row.Values = append(side.row.Values, sides[0].rate[round]/theirs)
		}
		side.row.Note = fmt.Sprintf("create, start, wait, delete by plain calls: %s/s, %.1f ms CPU each on the whole machine",
			figure(median(side.rate)), milliseconds(side.cost.busy)/float64(max(side.cost.runs, 1)))
	}
	return nil
}

const plainNamespace = "errand-bench-plain"

// plain makes containers by nothing but the calls that it takes.
type plain struct {
	client *client.Client
	image  client.Image
	number atomic.Int64
}

func newPlain(ctx context.Context, socket string) (*plain, error) {
	c, err := client.New(socket, client.WithDefaultNamespace(plainNamespace))
	if err != nil {
		return nil, fmt.Errorf("connect to containerd: %w", err)
	}
	image, err := c.GetImage(namespaces.WithNamespace(ctx, plainNamespace), busybox)
	if err == nil {
		err = image.Unpack(namespaces.WithNamespace(ctx, plainNamespace), "")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("image for the plain calls: %w", err), c.Close())
	}
	return &plain{client: c, image: image}, nil
}

// run is one bare container from its creation to its removal.
func (p *plain) run(ctx context.Context, _ int) error {
	return p.once(ctx, fmt.Sprintf("plain-%d", p.number.Add(1)), cio.NullIO)
}

// plainAlike makes containers that are as isolated as ours, and keeps their output.
type plainAlike struct {
	*plain
	dir string
}

func (p *plainAlike) run(ctx context.Context, _ int) error {
	id := fmt.Sprintf("alike-%d", p.number.Add(1))
	return p.once(ctx, id, cio.LogFile(filepath.Join(p.dir, id+".log")), withoutCapabilities, seccomp.WithDefaultProfile())
}

func withoutCapabilities(_ context.Context, _ oci.Client, _ *containerd.Container, spec *oci.Spec) error {
	spec.Process.Capabilities = &runtime.LinuxCapabilities{}
	return nil
}

func (p *plain) once(ctx context.Context, id string, output cio.Creator, options ...oci.SpecOpts) (err error) {
	ctx = namespaces.WithNamespace(ctx, plainNamespace)
	options = append([]oci.SpecOpts{oci.WithImageConfig(p.image), oci.WithProcessArgs("/bin/true")}, options...)
	container, err := p.client.NewContainer(ctx, id, client.WithImage(p.image), client.WithNewSnapshot(id, p.image), client.WithNewSpec(options...))
	if err != nil {
		return fmt.Errorf("plain container: %w", err)
	}
	defer func() {
		clearing, cancel := clearingUp(ctx)
		defer cancel()
		err = errors.Join(err, container.Delete(clearing, client.WithSnapshotCleanup))
	}()
	task, err := container.NewTask(ctx, output)
	if err != nil {
		return fmt.Errorf("plain task: %w", err)
	}
	defer func() {
		clearing, cancel := clearingUp(ctx)
		defer cancel()
		var kill []client.ProcessDeleteOpts
		if ctx.Err() != nil { // else it has ended, and this would be calls that nobody needs
			kill = append(kill, client.WithProcessKill)
		}
		_, deleteErr := task.Delete(clearing, kill...)
		err = errors.Join(err, deleteErr)
	}()
	exited, err := task.Wait(ctx)
	if err != nil {
		return fmt.Errorf("plain wait: %w", err)
	}
	if err := task.Start(ctx); err != nil {
		return fmt.Errorf("plain start: %w", err)
	}
	select {
	case status := <-exited:
		return status.Error()
	case <-ctx.Done():
		return ctx.Err()
	}
}
