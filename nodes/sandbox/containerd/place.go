package containerd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/cgroup"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images"
	"github.com/errand-run/errand/nodes/sandbox/containerd/quiet"
	"github.com/errand-run/errand/nodes/sandbox/guest/pid"
)

// placeMax bounds all that is asked of a containerd for an inventory.
const placeMax = 5 * time.Second

// Place is a containerd whose things are found, with its shims' and its runtime's. It
// may be used by many goroutines.
type Place struct {
	// Address is containerd's socket, Namespace what keeps ours apart (default
	// NamespaceDefault), StateDir its directory of what runs (default StateDirDefault).
	Address, Namespace, StateDir string
	// RootDir is its directory of what stays, if it is the node's alone: then all that
	// it has is the node's. Else only what bears a label or a cgroup of the node is.
	RootDir string
	// Snapshotter has the default images.SnapshotterDefault.
	Snapshotter string
}

// search is one look for what a node has at a Place.
type search struct {
	Place
	uuid string
	// ours are the ids of which it is known.
	ours   map[string]bool
	found  []sandbox.Thing
	unseen []string
}

// Held returns all that the node of a uuid has there, and in words what could not be
// looked at. known returns ids of sandboxes that the node has or had. Where containerd
// does not answer, what lies on the disk and in /proc is found all the same.
func (p Place) Held(ctx context.Context, uuid string, known func() []string) (things []sandbox.Thing, unseen []string) {
	if p.Namespace == "" {
		p.Namespace = NamespaceDefault
	}
	if p.StateDir == "" {
		p.StateDir = StateDirDefault
	}
	if p.Snapshotter == "" {
		p.Snapshotter = images.SnapshotterDefault
	}
	ids := known()
	s := &search{Place: p, uuid: uuid, ours: make(map[string]bool, len(ids))}
	for _, id := range ids {
		s.ours[id] = true
	}
	ctx, cancel := context.WithTimeout(quiet.Context(ctx), placeMax)
	defer cancel()
	s.records(ctx)
	s.bundles()
	s.runtime()
	s.shims()
	s.mounts()
	s.sockets()
	return s.found, s.unseen
}

func (s *search) add(thing sandbox.Thing) {
	if thing.Sandbox != "" {
		s.ours[thing.Sandbox] = true
	}
	s.found = append(s.found, thing)
}

func (s *search) miss(what string, err error) {
	if err != nil {
		s.unseen = append(s.unseen, what+": "+err.Error())
	}
}

// private tells whether containerd is the node's alone.
func (s *search) private() bool { return s.RootDir != "" }

// records finds what containerd knows.
func (s *search) records(ctx context.Context) {
	c, err := client.New(s.Address, client.WithDefaultNamespace(s.Namespace), client.WithTimeout(dialMax))
	if err != nil {
		s.miss("containerd", err)
		return
	}
	defer func() { s.miss("containerd", c.Close()) }()
	var filter []string
	if !s.private() {
		filter = []string{fmt.Sprintf("labels.%q==%q", labelNode, s.uuid)}
	}
	containers, err := c.ContainerService().List(ctx, filter...)
	if classOf(err) == records.ClassUnavailable && err != nil {
		s.miss("containers, tasks, snapshots, leases and ingests", fmt.Errorf("containerd at %s does not answer: %s", s.Address, unanswered(s.Address, err)))
		return
	}
	s.missRecords("containers", err)
	for _, container := range containers {
		s.add(sandbox.Thing{Kind: sandbox.KindContainer, Name: container.ID, Sandbox: container.ID, Since: container.CreatedAt})
	}
	leased, err := c.LeasesService().List(ctx, filter...)
	s.missRecords("leases", err)
	for _, lease := range leased {
		s.add(leaseThing(lease))
	}
	s.missRecords("snapshots", c.SnapshotService(s.Snapshotter).Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if info.Kind != snapshots.KindCommitted {
			s.add(snapshotThing(info))
		}
		return nil
	}, filter...))
	running, err := c.TaskService().List(ctx, &tasks.ListTasksRequest{})
	s.missRecords("tasks", native(err))
	for _, task := range running.GetTasks() {
		// The list has their ids here or there.
		id := task.GetID()
		if id == "" {
			id = task.GetContainerID()
		}
		if s.isOurs(id) {
			s.add(sandbox.Thing{Kind: sandbox.KindTask, Name: id, Sandbox: id})
		}
	}
	if !s.private() {
		return // whose they are can not be seen
	}
	ingests, err := c.ContentStore().ListStatuses(ctx)
	s.missRecords("ingests", err)
	for _, ingest := range ingests {
		s.add(sandbox.Thing{Kind: sandbox.KindIngest, Name: ingest.Ref, Since: ingest.StartedAt, Keeper: keptOfImage})
	}
}

func (s *search) missRecords(what string, err error) {
	if err != nil {
		s.miss(what, filtered(err, "list "+what+" of", s.Namespace))
	}
}

// keptOfImage says of content that is no sandbox's why it is there.
const keptOfImage = "an image is being fetched, or was when that was broken off: the next fetch of it goes on from here"

// labelExpiry is containerd's own, of a lease that ends by itself.
const labelExpiry = "containerd.io/gc.expire"

// leaseThing is a lease: a sandbox's, or one of an image that is fetched.
func leaseThing(lease leases.Lease) sandbox.Thing {
	thing := sandbox.Thing{Kind: sandbox.KindLease, Name: lease.ID, Since: lease.CreatedAt}
	if lease.Labels[labelNode] != "" || sandbox.IDIn(lease.ID) != "" {
		thing.Sandbox = lease.ID
		return thing
	}
	if until, err := time.Parse(time.RFC3339, lease.Labels[labelExpiry]); err == nil {
		thing.Keeper, thing.Until = keptOfImage, until
	}
	return thing
}

// snapshotThing is a writable layer: a sandbox's, or one that an image is unpacked into.
func snapshotThing(info snapshots.Info) sandbox.Thing {
	thing := sandbox.Thing{Kind: sandbox.KindSnapshot, Name: info.Name, Since: info.Created}
	if info.Labels[labelNode] != "" || sandbox.IDIn(info.Name) != "" {
		thing.Sandbox = info.Name
	} else {
		thing.Keeper = keptOfImage
	}
	return thing
}

// isOurs tells whether a sandbox is the node's, for what bears nothing but its id.
func (s *search) isOurs(id string) bool {
	if s.private() || s.ours[id] {
		return true
	}
	// The cgroup that the runtime was given names the node.
	config, err := os.ReadFile(filepath.Join(s.StateDir, bundlesDir, s.Namespace, id, "config.json"))
	return err == nil && s.names(config)
}

// names tells whether a file of the runtime's speaks of the node's cgroups.
func (s *search) names(content []byte) bool {
	return bytes.Contains(content, []byte("/"+cgroup.ParentName(s.uuid)+"/"))
}

// bundles finds the directories of tasks, and in a containerd of the node's own where
// layers were mounted for a moment.
func (s *search) bundles() {
	dirs := []string{filepath.Join(s.StateDir, bundlesDir, s.Namespace)}
	if s.private() {
		dirs = append(dirs, filepath.Join(s.RootDir, bundlesDir, s.Namespace))
	}
	for _, dir := range dirs {
		s.each(dir, func(name, path string) {
			id := strings.TrimPrefix(name, hidden)
			if config, err := os.ReadFile(filepath.Join(path, "config.json")); s.isOurs(id) || err == nil && s.names(config) {
				s.add(pathThing(sandbox.KindBundle, path, id))
			}
		})
	}
	if s.private() {
		s.each(filepath.Join(s.RootDir, "tmpmounts"), func(_, path string) {
			thing := pathThing(sandbox.KindTemporary, path, "")
			thing.Keeper = keptOfImage
			s.add(thing)
		})
	}
}

// runtime finds what runc has written down.
func (s *search) runtime() {
	s.each(filepath.Join(runcRoot, s.Namespace), func(name, path string) {
		state, err := os.ReadFile(filepath.Join(path, "state.json"))
		if s.ours[name] || err == nil && s.names(state) {
			s.add(pathThing(sandbox.KindRuntime, path, name))
		}
	})
}

// each calls for each entry of a directory, which need not be there.
func (s *search) each(dir string, found func(name, path string)) {
	entries, err := os.ReadDir(dir)
	s.miss(dir, ignoreAbsence(err))
	for _, entry := range entries {
		found(entry.Name(), filepath.Join(dir, entry.Name()))
	}
}

func pathThing(kind sandbox.Kind, path, id string) sandbox.Thing {
	thing := sandbox.Thing{Kind: kind, Name: path, Sandbox: id}
	if info, err := os.Lstat(path); err == nil {
		thing.Since = info.ModTime()
	}
	return thing
}

// shims finds the shims, and the programs that clear up after one.
func (s *search) shims() {
	s.each("/proc", func(name, path string) {
		number, err := strconv.Atoi(name)
		if err != nil {
			return
		}
		content, err := os.ReadFile(filepath.Join(path, "cmdline"))
		if err != nil {
			return // it has ended
		}
		args := strings.Split(string(content), "\x00")
		id := value(args, "-id")
		if !isShim(args, s.Address, s.Namespace) || !s.isOurs(id) {
			return
		}
		if _, err := pid.Of(number); err == nil {
			s.add(sandbox.Thing{Kind: sandbox.KindProcess, Name: name + " " + filepath.Base(args[0]), Sandbox: id})
		}
	})
}

// isShim tells whether a command line is that of a shim, or of the program that clears
// up after one.
func isShim(args []string, address, namespace string) bool {
	return strings.Contains(filepath.Base(args[0]), "containerd-shim") && value(args, "-namespace") == namespace && value(args, "-address") == address
}

// mounts finds what is mounted below the directories of tasks.
func (s *search) mounts() {
	content, err := os.ReadFile("/proc/self/mountinfo")
	s.miss("mounts", err)
	below := filepath.Join(s.StateDir, bundlesDir, s.Namespace) + "/"
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) < 5 || !strings.HasPrefix(fields[4], below) {
			continue
		}
		id, _, _ := strings.Cut(strings.TrimPrefix(fields[4], below), "/")
		if s.isOurs(id) {
			s.add(pathThing(sandbox.KindMount, fields[4], id))
		}
	}
}

// sockets finds those of shims: their names are hashes of what the shims are of, and the
// directory is that of all containerds of the host.
func (s *search) sockets() {
	there := map[string]bool{}
	s.each(shimSocketDir, func(name, _ string) { there[name] = true })
	if len(there) == 0 {
		return
	}
	ids := make([]string, 0, len(s.ours))
	for id := range s.ours { //errand:unordered sorted below
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		if name := s.socketOf(id); there[name] {
			s.add(pathThing(sandbox.KindSocket, filepath.Join(shimSocketDir, name), id))
		}
	}
}

func (p Place) socketOf(id string) string { return shimSocket(p.Address, p.Namespace, id) }

// shimSocket is the name of a shim's socket in shimSocketDir.
func shimSocket(address, namespace, id string) string {
	sum := sha256.Sum256([]byte(filepath.Join(address, namespace, id)))
	return hex.EncodeToString(sum[:])
}
