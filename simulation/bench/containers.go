package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// containerSubmitters are two per core of a machine of two.
const containerSubmitters = 4

// containers measures whole runs in containers against plain calls of a containerd
// client that keeps no record, writes no log and promises nothing, in turn on the same
// containerd.
func containers(ctx context.Context, s sizes) ([]row, error) {
	perSecond := row{What: fmt.Sprintf("runs of `true` in containers, %d submitters", containerSubmitters), Unit: "/s"}
	ratio := row{What: "containers per container of plain client calls", Unit: "x", Bar: atLeast(0.9)}
	d, err := startDaemon(ctx, "--drivers", "containerd", "--containerd", "private")
	if err != nil {
		ratio.Note = err.Error()
		return []row{ratio}, nil
	}
	err = d.containersInTurn(ctx, s, &perSecond, &ratio)
	return []row{perSecond, ratio}, errors.Join(err, d.stop())
}

func (d *benchDaemon) containersInTurn(ctx context.Context, s sizes, perSecond, ratio *row) (err error) {
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
	run := runOf(d, &errandv1.RunSpec{Driver: "containerd", Image: "busybox", Command: []string{"/bin/true"}})
	var cost costs
	var theirs []float64
	for round := range s.rounds + 1 {
		var c costs
		ours, err := c.measured(d, func() (rate, error) { return drive(ctx, containerSubmitters, s.slice, run) })
		if err != nil {
			return err
		}
		peer, err := drive(ctx, containerSubmitters, s.slice, plain.run)
		if err != nil {
			return err
		}
		if round == 0 { // both warm up
			continue
		}
		cost.add(c)
		theirs = append(theirs, peer.perSecond())
		perSecond.Values = append(perSecond.Values, ours.perSecond())
		ratio.Values = append(ratio.Values, ours.perSecond()/peer.perSecond())
	}
	perSecond.Note = cost.note()
	ratio.Note = fmt.Sprintf("create, start, wait, delete by plain calls: %s/s", figure(median(theirs)))
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

// run is one container from its creation to its removal.
func (p *plain) run(ctx context.Context, _ int) (err error) {
	ctx = namespaces.WithNamespace(ctx, plainNamespace)
	id := fmt.Sprintf("plain-%d", p.number.Add(1))
	container, err := p.client.NewContainer(ctx, id, client.WithImage(p.image), client.WithNewSnapshot(id, p.image),
		client.WithNewSpec(oci.WithImageConfig(p.image), oci.WithProcessArgs("/bin/true")))
	if err != nil {
		return fmt.Errorf("plain container: %w", err)
	}
	defer func() { err = errors.Join(err, container.Delete(ctx, client.WithSnapshotCleanup)) }()
	task, err := container.NewTask(ctx, cio.NullIO)
	if err != nil {
		return fmt.Errorf("plain task: %w", err)
	}
	defer func() {
		_, deleteErr := task.Delete(ctx)
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
