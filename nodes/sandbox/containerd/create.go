package containerd

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/logs/logger"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/cgroup"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images"
	"github.com/errand-run/errand/nodes/sandbox/containerd/quiet"
	"github.com/errand-run/errand/nodes/sandbox/guest/status"
)

// The labels of everything that is ours in containerd.
const (
	labelRun        = "errand/run"
	labelApp        = "errand/app"
	labelTask       = "errand/task"
	labelAttempt    = "errand/attempt"
	labelPlacement  = "errand/placement"
	labelNode       = "errand/node"
	labelStartToken = "errand/start-token"
	labelSpecHash   = "errand/spec-hash"
)

// The pauses between two tries to remove what a failed Create has made.
const (
	undoMin = 500 * time.Millisecond
	undoMax = 30 * time.Second
)

func (n note) labels() map[string]string {
	return map[string]string{
		labelRun: n.Run, labelApp: n.App, labelTask: n.Task, labelNode: n.Node,
		labelAttempt: strconv.Itoa(int(n.Attempt)), labelPlacement: strconv.Itoa(int(n.Placement)),
		labelStartToken: hex.EncodeToString(n.StartToken), labelSpecHash: hex.EncodeToString(n.SpecHash),
	}
}

// noteOf reads a note out of labels, where a sandbox's directory was lost.
func noteOf(labels map[string]string) note {
	number := func(key string) int32 {
		n, _ := strconv.ParseInt(labels[key], 10, 32)
		return int32(n)
	}
	token, _ := hex.DecodeString(labels[labelStartToken])
	hash, _ := hex.DecodeString(labels[labelSpecHash])
	return note{
		Run: labels[labelRun], App: labels[labelApp], Task: labels[labelTask], Node: labels[labelNode],
		Attempt: number(labelAttempt), Placement: number(labelPlacement), StartToken: token, SpecHash: hash,
	}
}

// Create prepares a sandbox up to its runtime's "created": Start only has to let init
// run. A step that has begun is not cut off by the context, which would leave it
// half-done; it has a deadline of its own.
func (d *Driver) Create(ctx context.Context, spec sandbox.Spec) error {
	return d.CreateTelling(ctx, spec, func() {})
}

// CreateTelling is Create; a pull is what it waits for.
func (d *Driver) CreateTelling(ctx context.Context, spec sandbox.Spec, waiting func()) error {
	ctx = quiet.Context(ctx)
	if err := checkID(spec.ID); err != nil {
		return err
	}
	name, err := imageName(spec.Spec.GetImage())
	if err != nil {
		return err
	}
	defer d.store.Hold(name)()
	image, pulled, err := d.imageOf(ctx, name, spec, waiting)
	if err != nil {
		return err
	}
	if pulled {
		// All that have waited for the same image go on at once, and count no more.
		select {
		case d.turns <- struct{}{}:
			defer func() { <-d.turns }()
		case <-ctx.Done():
			return startError(spec.ID, ctx.Err())
		}
	}
	b, err := d.plan(spec, image)
	if err != nil {
		return err
	}
	if owner := d.othersState(spec.ID); owner != "" {
		return taken(owner)
	}
	n := newNote(spec, b.args[0])
	if err := d.makeDir(spec.ID, n); err != nil {
		return err
	}
	err = d.build(ctx, spec, n, image, b)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		return nil
	}
	// containerd does not say of every record that it exists already. Where it does not
	// answer now, undo asks again.
	owner, _ := d.othersRecord(ctx, spec.ID)
	d.undo(ctx, spec.ID)
	if owner != "" {
		return taken(owner)
	}
	return startError(spec.ID, err)
}

// undo removes what a failed Create has made, and nothing of a sandbox of the same id that
// is another's. Where that can not be now, because
// containerd is away, it is tried again until the driver is closed; List shows what is
// left then.
func (d *Driver) undo(ctx context.Context, id string) {
	remove := func(ctx context.Context) error {
		step, cancel := own(ctx, removeMax)
		defer cancel()
		if done, err := d.leaveOthers(step, id, ""); done || err != nil {
			return err
		}
		return d.Remove(step, id)
	}
	if remove(ctx) == nil {
		return
	}
	d.later.Go(func() {
		for pause := undoMin; ; pause = min(2*pause, undoMax) {
			select {
			case <-d.open.Done():
				return
			case <-time.After(pause):
			}
			if err := remove(d.open); err == nil {
				return
			}
		}
	})
}

// imageName returns the name of a run's image in full.
func imageName(typed string) (string, error) {
	if typed == "" {
		return "", sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "the run names no image")
	}
	name, err := images.Normalize(typed)
	if err != nil {
		return "", sandbox.Permanentf(recordv1.Reason_REASON_IMAGE_NOT_FOUND, "%s", err)
	}
	return name, nil
}

// imageOf finds the image, and pulls it by the run's policy.
func (d *Driver) imageOf(ctx context.Context, name string, spec sandbox.Spec, waiting func()) (details images.Details, pulled bool, err error) {
	policy := spec.Spec.GetPull()
	if policy != recordv1.PullPolicy_PULL_POLICY_ALWAYS {
		details, err = d.store.Describe(ctx, name)
		if err == nil || records.ClassOf(err) != records.ClassNotFound {
			return details, false, d.lookUpError(ctx, name, err)
		}
	}
	if policy == recordv1.PullPolicy_PULL_POLICY_NEVER {
		return details, false, sandbox.Permanentf(recordv1.Reason_REASON_IMAGE_NOT_FOUND,
			"image %s is not on this node, and the run is never to pull it: import it with \"errand image import\"", name)
	}
	waiting()
	if err := d.pull(ctx, name, spec.Run); err != nil {
		return details, true, err
	}
	details, err = d.store.Describe(ctx, name)
	return details, true, d.lookUpError(ctx, name, err)
}

// lookUpError puts a failure to find an image into the contract's words.
func (d *Driver) lookUpError(ctx context.Context, name string, err error) error {
	switch {
	case err == nil:
		return nil
	case records.ClassOf(err) == records.ClassNotFound:
		return sandbox.Transientf(recordv1.Reason_REASON_IMAGE_PULL, "image %s went away right after it was pulled", name)
	case records.ClassOf(err) == records.ClassInvalid:
		return sandbox.Permanentf(recordv1.Reason_REASON_IMAGE_NOT_FOUND, "image %s makes no sense: import or pull it again", name)
	case ctx.Err() != nil:
		return records.Errorf(records.ClassDeadline, "look up image %s: %w", name, ctx.Err())
	case records.ClassOf(err) == records.ClassUnavailable:
		return sandbox.Transientf(recordv1.Reason_REASON_START_ERROR, "containerd at %s does not answer: %s", d.config.Address, unanswered(d.config.Address, err))
	}
	return sandbox.Transientf(recordv1.Reason_REASON_START_ERROR, "look up image %s: %s", name, cause(err))
}

// pull fetches the image, with the node's own credentials.
func (d *Driver) pull(ctx context.Context, name, run string) error {
	_, err := d.store.Pull(ctx, images.PullRequest{Name: name, Run: run}, nil)
	var start *sandbox.StartError
	switch {
	case err == nil, errors.As(err, &start):
		return err
	case records.ClassOf(err) == records.ClassUnavailable:
		return sandbox.Transientf(recordv1.Reason_REASON_START_ERROR, "containerd can not be reached")
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return records.Errorf(records.ClassDeadline, "pull image %s: %w", name, err)
	}
	return sandbox.Transientf(recordv1.Reason_REASON_IMAGE_PULL, "pull image %s: %s", name, cause(err))
}

// plan fills in the image's defaults and checks all that can be checked without
// touching anything.
func (d *Driver) plan(spec sandbox.Spec, image images.Details) (blueprint, error) {
	run := spec.Spec
	b := blueprint{
		args:       argumentsOf(run.GetCommand(), image.Config.Entrypoint, image.Config.Cmd),
		readOnly:   run.GetReadOnlyRoot(),
		createdDir: "/",
	}
	switch {
	case run.GetTerminal():
		b.input = "terminal"
	case run.GetStdin():
		b.input = "stdin"
	}
	var err error
	if b.limits, err = limitsOf(run, d.config.PidsLimit); err != nil {
		return b, err
	}
	dir, err := workingDirOf(run.GetWorkingDir(), image.Config.WorkingDir)
	if err != nil {
		return b, err
	}
	if run.GetWorkingDir() != "" {
		b.enteredDir = dir
	} else {
		b.createdDir = dir
	}
	return b, checkCommand(b.args, mergeEnvironment(image.Config.Env, run.GetEnv(), ""))
}

// build makes lease, snapshot, container and task, in this order.
func (d *Driver) build(ctx context.Context, spec sandbox.Spec, n note, image images.Details, b blueprint) error {
	if err := os.MkdirAll(filepath.Dir(spec.LogPath), 0o700); err != nil {
		return fmt.Errorf("directory of logs: %w", err)
	}
	labels := n.labels()
	step, cancel := own(ctx, createMax)
	defer cancel()
	lease, err := d.leases.Create(step, leases.WithID(spec.ID), leases.WithLabels(labels))
	if err != nil {
		return filtered(err, "lease of", spec.ID)
	}
	step = leases.WithLease(step, lease.ID)
	mounts, err := d.prepare(step, spec.ID, image, labels)
	if err != nil {
		return err
	}
	words := spec.Spec.GetUser()
	if words == "" {
		words = image.Config.User
	}
	if b.account, err = d.accountOf(spec.ID, words, image, mounts); err != nil {
		return err
	}
	b.env = mergeEnvironment(image.Config.Env, spec.Spec.GetEnv(), b.account.home)
	if err := status.Create(d.statusPath(spec.ID), int(b.account.uid), int(b.account.gid)); err != nil {
		return err
	}
	oci, err := d.ociSpec(spec.ID, d.parent.Group(spec.ID).Path(), b)
	if err != nil {
		return err
	}
	if err := d.record(step, spec.ID, image, labels, oci); err != nil {
		return err
	}
	return d.newTask(ctx, spec, mounts, oci.Linux.Seccomp != nil)
}

// prepare makes the sandbox's own layer. Where the image's layers are not unpacked for
// this snapshotter they are first.
func (d *Driver) prepare(ctx context.Context, id string, image images.Details, labels map[string]string) ([]mount.Mount, error) {
	mounts, err := d.snapshot.Prepare(ctx, id, image.ChainID, snapshots.WithLabels(labels))
	if errdefs.IsNotFound(err) {
		if err := d.store.Unpack(ctx, image.Name); err != nil {
			return nil, filtered(err, "unpack the image of", id)
		}
		mounts, err = d.snapshot.Prepare(ctx, id, image.ChainID, snapshots.WithLabels(labels))
	}
	if err != nil {
		return nil, filtered(err, "snapshot of", id)
	}
	return mounts, nil
}

func (d *Driver) record(ctx context.Context, id string, image images.Details, labels map[string]string, spec *specs.Spec) error {
	encoded, err := typeurl.MarshalAny(spec)
	if err != nil {
		return fmt.Errorf("encode the spec of %s: %s", id, "it can not be written as JSON")
	}
	_, err = d.client.ContainerService().Create(ctx, containers.Container{
		ID: id, Labels: labels, Image: image.Name, Spec: encoded,
		Runtime: containers.RuntimeInfo{Name: d.config.Runtime}, Snapshotter: d.config.Snapshotter, SnapshotKey: id,
	})
	if err != nil {
		return filtered(err, "container", id)
	}
	return nil
}

// newTask makes shim, logger and the runtime's container. byRuntime tells that the
// runtime compiles the seccomp filter.
func (d *Driver) newTask(ctx context.Context, spec sandbox.Spec, mounts []mount.Mount, byRuntime bool) error {
	output, err := d.logURI(spec)
	if err != nil {
		return err
	}
	request := &tasks.CreateTaskRequest{ContainerID: spec.ID, Stdout: output, Stderr: output}
	for _, m := range mounts {
		request.Rootfs = append(request.Rootfs, &types.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	step, cancel := own(ctx, taskMax)
	defer cancel()
	created, err := d.client.TaskService().Create(step, request)
	if err != nil {
		return filtered(err, "create", spec.ID)
	}
	if byRuntime {
		d.learnFilter(spec.ID, created.GetPid())
	}
	if spec.Unfenced && d.config.Fence != "" {
		// The runtime has made the group; nothing of the command is in it yet.
		return d.parent.Group(spec.ID).Unfence()
	}
	return nil
}

// logURI names our logger to the shim, which starts it with the command's pipes.
func (d *Driver) logURI(spec sandbox.Spec) (string, error) {
	of := logger.Config{
		LogPath: spec.LogPath, RunDir: d.dir(spec.ID), SegmentBytes: d.config.LogSegmentBytes, Segments: d.config.LogSegments,
		Status: d.statusPath(spec.ID),
	}
	if d.config.Fence != "" && !spec.Unfenced {
		of.Fence, of.CgroupRoot, of.Parent, of.Group = d.config.Fence, cgroup.Root, d.parent.Name(), spec.ID
	}
	config, err := of.Encode()
	if err != nil {
		return "", err
	}
	uri := url.URL{Scheme: "binary", Path: d.config.Init, RawQuery: url.Values{"log": {config}}.Encode()}
	return uri.String(), nil
}

// startError puts a failure before the start into the contract's words: what is not
// known to be permanent is tried again until the start deadline.
func startError(id string, err error) error {
	var known *sandbox.StartError
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return records.Errorf(records.ClassDeadline, "create sandbox %s: %w", id, err)
	case records.ClassOf(err) == records.ClassUnavailable:
		return sandbox.Transientf(recordv1.Reason_REASON_START_ERROR, "containerd can not be reached")
	case strings.Contains(err.Error(), notADirectory):
		return sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "/proc or /sys of the image is not a directory")
	case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist):
		return sandbox.Transientf(recordv1.Reason_REASON_START_ERROR, "the node's data directory: %s", cause(err))
	}
	return sandbox.Transientf(recordv1.Reason_REASON_START_ERROR, "the sandbox could not be created: %s", cause(err))
}
