// Package leftover counts what a node's sandboxes have on the machine, from outside: by
// the kernel's files, containerd's and the runtime's own, and never by asking the node.
// A test takes a node's inventory when all its runs have ended and their sandboxes are
// removed: whatever it names was left behind. Logs are kept on purpose, and counted
// apart.
package leftover

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"

	"github.com/errand-run/errand/nodes/sandbox/cgroup"
	"github.com/errand-run/errand/nodes/sandbox/containerd"
)

const (
	shimSockets  = "/run/containerd/s"
	runtimeState = "/run/containerd/runc"
	askMax       = 10 * time.Second
)

// Node is whose things are counted: a node with a data directory of its own, and with a
// private containerd if it has one.
type Node struct {
	// Data is the data directory, an absolute path that occurs in no other node's.
	Data string
	// Sandboxes are the ids of those that it had, for what carries their name only.
	Sandboxes []string
}

// Inventory returns all that there is of a node's sandboxes, each as "KIND NAME", in
// order. A node without any gives none.
func (n Node) Inventory(ctx context.Context) ([]string, error) {
	uuid, err := os.ReadFile(filepath.Join(n.Data, "node.uuid"))
	if err != nil {
		return nil, fmt.Errorf("inventory of a node: %w", err)
	}
	parent := cgroup.ParentName(strings.TrimSpace(string(uuid)))
	found, err := n.processes(parent)
	mounts, mountErr := n.mounts()
	records, recordErr := n.records(ctx)
	found = slices.Concat(found, mounts, records, groups(parent), n.files())
	slices.Sort(found)
	return slices.Compact(found), errors.Join(err, mountErr, recordErr)
}

// Settle takes inventories until there is nothing left or the context ends, and returns
// the last one: removal goes on for a moment after a run has ended.
func (n Node) Settle(ctx context.Context) ([]string, error) {
	tick := time.NewTicker(askMax / 50)
	defer tick.Stop()
	for {
		found, err := n.Inventory(context.WithoutCancel(ctx))
		if err == nil && len(found) == 0 {
			return nil, nil
		}
		select {
		case <-ctx.Done():
			return found, err
		case <-tick.C:
		}
	}
}

// Logs counts the logs that are kept, one for each attempt, of however many segments.
func (n Node) Logs() (int, error) {
	entries, err := os.ReadDir(filepath.Join(n.Data, "logs"))
	kept := map[string]struct{}{}
	for _, entry := range entries {
		kept[strings.TrimSuffix(entry.Name(), ".log")] = struct{}{}
	}
	return len(kept), err
}

// processes finds the supervisors, shims, loggers, inits and commands, and the
// namespaces that they keep.
func (n Node) processes(parent string) ([]string, error) {
	all, err := filepath.Glob("/proc/[0-9]*")
	var found []string
	for _, dir := range all {
		groups, err1 := os.ReadFile(filepath.Join(dir, "cgroup"))
		line, err2 := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err1 != nil || err2 != nil || len(line) == 0 {
			continue // it has ended
		}
		args := strings.Split(string(line), "\x00")
		program := filepath.Base(args[0])
		inside := bytes.Contains(groups, []byte("/"+parent+"/"))
		outside := strings.Contains(string(line), n.Data+"/") && (strings.HasPrefix(program, "sandbox-init") || strings.HasPrefix(program, "containerd-shim"))
		if !inside && !outside {
			continue
		}
		found = append(found, "process "+filepath.Base(dir)+" "+strings.Join(args, " "))
		for _, kind := range []string{"pid", "net"} {
			own, err := os.Readlink(filepath.Join(dir, "ns", kind))
			ours, _ := os.Readlink(filepath.Join("/proc/self/ns", kind))
			if err == nil && own != ours {
				found = append(found, "namespace "+own)
			}
		}
	}
	return found, err
}

func (n Node) mounts() ([]string, error) {
	content, err := os.ReadFile("/proc/self/mountinfo")
	var found []string
	for line := range strings.Lines(string(content)) {
		if fields := strings.Fields(line); strings.Contains(line, n.Data+"/") && len(fields) > 4 {
			found = append(found, "mount "+fields[4])
		}
	}
	return found, err
}

// groups finds the cgroups of sandboxes in every tree.
func groups(parent string) []string {
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		dirs, _ := filepath.Glob(filepath.Join(pattern, parent, "*"))
		for _, dir := range dirs {
			if info, err := os.Stat(dir); err == nil && info.IsDir() {
				found = append(found, "cgroup "+dir)
			}
		}
	}
	return found
}

// files finds what sandboxes have on the disk, beside their logs.
func (n Node) files() []string {
	var found []string
	add := func(kind string, patterns ...string) {
		paths, _ := filepath.Glob(filepath.Join(patterns...))
		for _, path := range paths {
			if !strings.HasPrefix(filepath.Base(path), ".filter-") { // of the driver, for all of its sandboxes
				found = append(found, kind+" "+path)
			}
		}
	}
	home := filepath.Join(n.Data, "containerd")
	add("directory", home, "sandboxes", "*")
	add("bundle", home, "state", "io.containerd.runtime.v2.task", "*", "*")
	add("bundle", home, "root", "io.containerd.runtime.v2.task", "*", "*")
	add("temporary file", home, "root", "tmpmounts", "*")
	add("temporary file", n.Data, "*", "*.new")
	for _, id := range n.Sandboxes {
		sum := sha256.Sum256([]byte(filepath.Join(n.socket(), containerd.NamespaceDefault, id)))
		add("shim socket", shimSockets, hex.EncodeToString(sum[:]))
		add("runtime state", runtimeState, containerd.NamespaceDefault, id)
	}
	return found
}

// socket is that of the node's own containerd, as its configuration names it; empty if it
// has none.
func (n Node) socket() string {
	config, err := os.ReadFile(filepath.Join(n.Data, "containerd", "config.toml"))
	if err != nil {
		return ""
	}
	var named struct {
		GRPC struct {
			Address string `toml:"address"`
		} `toml:"grpc"`
	}
	if err := toml.Unmarshal(config, &named); err != nil {
		return ""
	}
	return named.GRPC.Address
}

// records finds what the node's own containerd knows, if it has one.
func (n Node) records(ctx context.Context) (found []string, err error) {
	socket := n.socket()
	if socket == "" {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, containerd.NamespaceDefault), askMax)
	defer cancel()
	c, err := client.New(socket)
	if err != nil {
		return nil, fmt.Errorf("inventory of containerd: %w", err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	containers, err1 := c.ContainerService().List(ctx)
	for _, container := range containers {
		found = append(found, "container "+container.ID)
	}
	running, err2 := c.TaskService().List(ctx, &tasks.ListTasksRequest{})
	for _, task := range running.GetTasks() {
		found = append(found, "task "+task.GetID())
	}
	leases, err3 := c.LeasesService().List(ctx)
	for _, lease := range leases {
		found = append(found, "lease "+lease.ID)
	}
	err4 := c.SnapshotService("overlayfs").Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if info.Kind != snapshots.KindCommitted {
			found = append(found, "snapshot "+info.Name)
		}
		return nil
	})
	ingests, err5 := c.ContentStore().ListStatuses(ctx)
	for _, ingest := range ingests {
		found = append(found, "ingest "+ingest.Ref)
	}
	return found, errors.Join(err1, err2, err3, err4, err5)
}
