package boot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/cgroup"
	"github.com/errand-run/errand/nodes/sandbox/containerd"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images"
	"github.com/errand-run/errand/nodes/sandbox/process"
)

// What runs here carries the uuid of its node, which is that of a data directory. Who
// empties the directory takes the uuid away with the journal: what still runs would be
// nobody's, be seen by nobody and never end, while the same idempotency keys start the
// same commands beside it. So the runtime directory, which outlives that and no boot, has
// a note of each uuid with the data directory that it had last.

const (
	notePrefix, noteSuffix = "node-", ".data"
	// noteBytesMax is more than any path.
	noteBytesMax = 8 << 10
	// endAtOnce bounds the sandboxes of a former node that are removed at one time.
	endAtOnce = 32
)

// notes are those of a runtime directory.
type notes struct{ dir string }

func (n notes) path(uuid string) string { return filepath.Join(n.dir, notePrefix+uuid+noteSuffix) }

// keep notes that a uuid is that of a data directory now.
func (n notes) keep(uuid, data string) error {
	path := n.path(uuid)
	if err := os.WriteFile(path+".new", []byte(data), 0o600); err != nil {
		return fmt.Errorf("note of the data directory: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("note of the data directory: %w", err)
	}
	return nil
}

// forget removes the note of a uuid.
func (n notes) forget(uuid string) error {
	if err := os.Remove(n.path(uuid)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("note of the data directory: %w", err)
	}
	return nil
}

// former returns the other uuids whose data directory was this one, sorted.
func (n notes) former(uuid, data string) ([]string, error) {
	entries, err := os.ReadDir(n.dir)
	if err != nil {
		return nil, fmt.Errorf("notes of data directories: %w", err)
	}
	var former []string
	for _, entry := range entries {
		name, isNote := strings.CutPrefix(entry.Name(), notePrefix)
		other, whole := strings.CutSuffix(name, noteSuffix)
		if !isNote || !whole || other == uuid || other == "" {
			continue
		}
		if info, err := entry.Info(); err != nil || !info.Mode().IsRegular() || info.Size() > noteBytesMax {
			continue // another one has it now, or it is none
		}
		content, err := os.ReadFile(n.path(other))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("notes of data directories: %w", err)
		}
		if string(content) == data {
			former = append(former, other)
		}
	}
	return former, nil
}

// endFormer sees to what runs of nodes that had this data directory before, and notes
// whose it is now. Something that runs is not ended unless the loss of the journal that
// knew of it was accepted: the directory may only have been moved.
func (h *sandboxHost) endFormer(ctx context.Context) error {
	data, err := filepath.EvalSymlinks(h.settings.DataDir)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	kept := notes{h.settings.RuntimeDir}
	former, err := kept.former(h.storage.uuid, data)
	if err != nil {
		return err
	}
	for _, uuid := range former {
		if err := h.endNode(ctx, uuid); err != nil {
			return err
		}
		if err := kept.forget(uuid); err != nil {
			return err
		}
	}
	return kept.keep(h.storage.uuid, data)
}

// endNode ends and removes what there is of a node that had this data directory before.
func (h *sandboxHost) endNode(ctx context.Context, uuid string) error {
	dir, err := h.formerDir()
	if err != nil {
		return fmt.Errorf("what runs of node %s: %w", uuid, err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for _, name := range h.names() {
		driver, err := h.openFormer(ctx, name, uuid, dir)
		if err != nil {
			return fmt.Errorf("what runs of node %s: %s driver: %w", uuid, name, err)
		}
		if driver == nil {
			continue
		}
		err = h.endAll(ctx, driver, uuid)
		if err := errors.Join(err, driver.Close()); err != nil {
			return err
		}
	}
	return h.endGroups(ctx, uuid)
}

// endGroups makes sure by the cgroups that nothing runs of a node that was, whichever
// drivers it had and this one has, and removes those that are empty.
func (h *sandboxHost) endGroups(ctx context.Context, uuid string) error {
	parent, err := cgroup.Open(cgroup.Root, cgroup.ParentName(uuid))
	if errors.Is(err, cgroup.ErrUnavailable) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("what runs of node %s: %w", uuid, err)
	}
	ids, err := parent.List()
	if err != nil {
		return fmt.Errorf("what runs of node %s: %w", uuid, err)
	}
	slices.Sort(ids)
	for _, id := range ids {
		group := parent.Group(id)
		empty, err := group.Empty()
		if err != nil {
			return fmt.Errorf("what runs of node %s: %w", uuid, err)
		}
		if !empty && h.settings.AcceptLossOf != LossOfJournal {
			return h.runsHere(id, "", uuid)
		}
		if !empty {
			h.log.Warn("what runs in a cgroup of the node that had this data directory before is killed", zap.String("sandbox", id), zap.String("node", uuid))
			if _, err := group.Kill(ctx); err != nil {
				return fmt.Errorf("end what is left of node %s: %w", uuid, err)
			}
		}
		if h.settings.AcceptLossOf == LossOfJournal {
			if err := group.Remove(ctx); err != nil {
				return fmt.Errorf("end what is left of node %s: %w", uuid, err)
			}
		}
	}
	_ = parent.Remove() // it stays while there is something in it
	return nil
}

// runsHere refuses a start for a sandbox of a node that had this data directory before.
func (h *sandboxHost) runsHere(id, run, uuid string) error {
	if run != "" {
		run = " of run " + run
	}
	return fmt.Errorf("sandbox %s%s is running here and is that of node %s, which had this data directory (%s) before: the directory was emptied, or moved away, while it ran. "+
		"Put it back, or, if none of its commands is in a container, start a node where it is now; if it is lost for good, start once with --accept-loss-of journal: what runs is stopped then", id, run, uuid, h.settings.DataDir)
}

// formerDir makes an empty directory for drivers that are opened for a moment, in the place
// of one that a crash has left.
func (h *sandboxHost) formerDir() (string, error) {
	dir := filepath.Join(h.settings.DataDir, "former")
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return dir, os.Mkdir(dir, 0o700)
}

// names are those of the drivers that are open.
func (h *sandboxHost) names() []string {
	var names []string
	for _, driver := range h.drivers {
		names = append(names, driver.Name())
	}
	return names
}

// openFormer opens a driver under the uuid of a node that was, nil where there can be
// nothing of it.
func (h *sandboxHost) openFormer(ctx context.Context, name, uuid, dir string) (sandbox.Driver, error) {
	helper, err := h.installHelper()
	if err != nil {
		return nil, err
	}
	switch {
	case name == DriverProcess:
		return process.New(process.Config{Dir: filepath.Join(dir, name), NodeUUID: uuid, Helper: helper, LogSegmentBytes: h.settings.LogBytes / logSegments, LogSegments: logSegments})
	case name == DriverContainerd && h.place != nil:
		return containerd.New(ctx, containerd.Config{
			Address: h.place.Address, StateDir: h.place.StateDir, RootDir: h.place.RootDir, Namespace: h.place.Namespace, NodeUUID: uuid,
			Dir: filepath.Join(dir, name), Init: helper, LogSegmentBytes: h.settings.LogBytes / logSegments, LogSegments: logSegments,
			Log: h.log.Named(name), Bounds: images.Bounds{AgeMax: -1, BytesMax: -1},
		})
	default:
		return nil, nil
	}
}

// endAll removes all that a driver lists. What runs is an error, unless it may be ended;
// what has ended and is more than a trace is then left to who comes with its journal.
func (h *sandboxHost) endAll(ctx context.Context, driver sandbox.Driver, uuid string) error {
	accepted := h.settings.AcceptLossOf == LossOfJournal
	infos, err := driver.List(ctx)
	if err != nil {
		return fmt.Errorf("what runs of node %s: %w", uuid, err)
	}
	for _, info := range infos {
		if info.State == sandbox.StateRunning && !accepted {
			return h.runsHere(info.ID, info.Run, uuid)
		}
	}
	// A container without its records takes seconds.
	failures, turns := make([]error, len(infos)), make(chan struct{}, endAtOnce)
	var ending sync.WaitGroup
	for i, info := range infos {
		if !accepted && !info.Trace {
			continue
		}
		h.log.Warn("a sandbox of the node that had this data directory before is stopped and removed",
			zap.String("sandbox", info.ID), zap.String("run", info.Run), zap.String("node", uuid), zap.String("driver", driver.Name()))
		ending.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			_, failures[i] = driver.Kill(ctx, info.ID)
			if failures[i] == nil {
				failures[i] = driver.Remove(ctx, info.ID)
			}
		})
	}
	ending.Wait()
	if err := errors.Join(failures...); err != nil {
		return fmt.Errorf("end what is left of node %s: %w", uuid, err)
	}
	return nil
}
