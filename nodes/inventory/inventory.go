package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/cgroup"
	"github.com/errand-run/errand/nodes/sandbox/containerd"
	"github.com/errand-run/errand/nodes/sandbox/containerd/private"
	"github.com/errand-run/errand/nodes/sandbox/guest/pid"
	"github.com/errand-run/errand/nodes/sandbox/process"
)

// UUIDFile holds a node's uuid, below its data directory.
const UUIDFile = "node.uuid"

// directory and bundles of the drivers below a data directory.
const (
	containerdDir = "containerd"
	sandboxesDir  = "sandboxes"
	processDir    = "process"
	logsDir       = "logs"
)

// placementsTried is how many placements of an attempt are thought of, where a thing
// bears nothing but a hash of a sandbox's id.
const placementsTried = 3

// Node is whose things are found. It may be used by many goroutines.
type Node struct {
	// Data is the node's data directory, an absolute path.
	Data string
	// UUID is the node's.
	UUID string
	// Containerd is the one that it uses; nil where it uses none.
	Containerd *containerd.Place
	// Sandboxes are ids of sandboxes that it had, for things that bear only a hash of one.
	// Those whose logs are kept are known anyway.
	Sandboxes []string
}

// At returns the node of a data directory, as its files tell of it: with the private
// containerd that it has, or none.
func At(data string) (Node, error) {
	uuid, err := os.ReadFile(filepath.Join(data, UUIDFile))
	if err != nil {
		return Node{}, fmt.Errorf("inventory of a node: %w", err)
	}
	n := Node{Data: data, UUID: strings.TrimSpace(string(uuid))}
	if address, state, root, ok := private.At(filepath.Join(data, containerdDir)); ok {
		n.Containerd = &containerd.Place{Address: address, StateDir: state, RootDir: root}
	}
	return n, nil
}

// Take returns all that there is of the node's sandboxes, in order, and in words what
// could not be looked at. Each part of it has a deadline of its own.
func (n Node) Take(ctx context.Context) (things []sandbox.Thing, unseen []string) {
	add := func(what string, found []sandbox.Thing, err error) {
		things = append(things, found...)
		if err != nil {
			unseen = append(unseen, what+": "+err.Error())
		}
	}
	found, err := n.processes()
	add("processes", found, err)
	add("containerds that lost their files", n.lost(), nil)
	found, err = n.mounts()
	add("mounts", found, err)
	add("cgroups", n.groups(), nil)
	found, err = n.files()
	add("files", found, err)
	found, err = process.Held(filepath.Join(n.Data, processDir))
	add("sandboxes of the process driver", found, err)
	if n.Containerd != nil {
		// Those that bear only a hash of an id are looked for by all ids that are known.
		known := slices.Clone(n.Sandboxes)
		for _, thing := range things {
			if thing.Sandbox != "" {
				known = append(known, thing.Sandbox)
			}
		}
		found, missed := n.Containerd.Held(ctx, n.UUID, func() []string { return append(known, n.logged()...) })
		things, unseen = append(things, found...), append(unseen, missed...)
	}
	slices.SortFunc(things, compare)
	return slices.CompactFunc(things, func(a, b sandbox.Thing) bool { return a.Kind == b.Kind && a.Name == b.Name }), unseen
}

func compare(a, b sandbox.Thing) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(b.Sandbox, a.Sandbox))
}

// groups finds the cgroups of sandboxes in every tree, whether it is used by now or not.
func (n Node) groups() []sandbox.Thing {
	var found []sandbox.Thing
	for _, pattern := range []string{cgroup.Root, filepath.Join(cgroup.Root, "*")} {
		dirs, _ := filepath.Glob(filepath.Join(pattern, cgroup.ParentName(n.UUID), "*")) // the pattern is a good one
		for _, dir := range dirs {
			if info, err := os.Stat(dir); err == nil && info.IsDir() {
				found = append(found, sandbox.Thing{Kind: sandbox.KindCgroup, Name: dir, Sandbox: filepath.Base(dir), Since: info.ModTime()})
			}
		}
	}
	return found
}

// files finds the directories of sandboxes and what was written to be renamed.
func (n Node) files() ([]sandbox.Thing, error) {
	dir := filepath.Join(n.Data, containerdDir, sandboxesDir)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	var found []sandbox.Thing
	for _, entry := range entries {
		if entry.IsDir() { // what is none is of the driver, for all of its sandboxes
			found = append(found, thingOf(sandbox.KindDirectory, filepath.Join(dir, entry.Name())))
		}
	}
	for _, pattern := range []string{"*.new", "*/*.new"} {
		paths, _ := filepath.Glob(filepath.Join(n.Data, pattern)) // the pattern is a good one
		for _, path := range paths {
			found = append(found, thingOf(sandbox.KindTemporary, path))
		}
	}
	return found, err
}

// thingOf is the thing at a path that bears the id of its sandbox.
func thingOf(kind sandbox.Kind, path string) sandbox.Thing {
	thing := sandbox.Thing{Kind: kind, Name: path, Sandbox: sandbox.IDIn(filepath.Base(path))}
	if info, err := os.Lstat(path); err == nil {
		thing.Since = info.ModTime()
	}
	return thing
}

// logged are the ids of the sandboxes whose logs are kept.
func (n Node) logged() []string {
	var ids []string
	entries, err := os.ReadDir(filepath.Join(n.Data, logsDir))
	if err != nil {
		return nil // there are no logs, or what they tell is not known
	}
	for _, entry := range entries {
		run, attempt, ok := attemptOf(entry.Name())
		for placement := int32(1); ok && placement <= placementsTried; placement++ {
			ids = append(ids, records.SandboxID(run, attempt, placement))
		}
	}
	return ids
}

// attemptOf reads the name of a log (logs.Path): RUN.ATTEMPT and what follows a dot.
func attemptOf(name string) (run string, attempt int32, ok bool) {
	parts := strings.Split(name, ".")
	for i := 1; i < len(parts); i++ {
		run := strings.Join(parts[:i], ".")
		number, err := strconv.ParseInt(parts[i], 10, 32)
		if _, bad := records.AppOfRun(run); err == nil && bad == nil {
			return run, int32(number), true
		}
	}
	return "", 0, false
}

// lost finds the containerds that were started for the data directory and whose files are
// not there any more.
func (n Node) lost() []sandbox.Thing {
	var found []sandbox.Thing
	for _, one := range private.LostOf(filepath.Join(n.Data, containerdDir)) {
		thing := sandbox.Thing{Kind: sandbox.KindContainerd, Name: strconv.Itoa(one.PID)}
		if ref, err := pid.Of(one.PID); err == nil {
			thing.Since = sinceOf(ref)
		}
		found = append(found, thing)
	}
	return found
}

// sinceOf is when a process was started; zero where that can not be seen.
func sinceOf(ref pid.Ref) time.Time {
	var uptime unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &uptime) != nil {
		return time.Time{}
	}
	return started(ref.Start, time.Duration(uptime.Nano()), time.Now())
}

// started is when a process was started that was so many clock ticks after the boot.
func started(ticks uint64, sinceBoot time.Duration, now time.Time) time.Time {
	const perSecond = 100                                                     // USER_HZ, which the kernel promises
	return now.Add(-sinceBoot + time.Duration(ticks)*(time.Second/perSecond)) //nolint:gosec // a machine's age
}
