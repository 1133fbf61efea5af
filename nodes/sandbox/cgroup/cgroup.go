// Package cgroup limits, counts and kills the processes of sandboxes through the
// cgroup file system alone: it needs no runtime and no daemon, so a guard can use it
// when both hang.
//
// A node has one Parent, and each sandbox one Group below it, named by the sandbox
// id. Both layouts of Linux are covered: the unified one (v2), and v1 hierarchies
// with or without the v2 tree of a hybrid host beside them. A Group is the same
// directory name in every hierarchy; operations act on those that exist, whoever
// made them.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Root is where the cgroup file systems are mounted.
const Root = "/sys/fs/cgroup"

// MinMemoryBytes is the least memory limit that lets a runtime and init start.
const MinMemoryBytes = 8 << 20

// InitPids is what an init within the group takes of a limit of processes, which are
// threads to the kernel. Who limits such a group adds it to what the command may have.
// Init makes 7 threads before it starts the command; the rest is for hosts of many
// processors, where the runtime makes some more before init can keep it from that. What
// is left of it is the command's: a limit holds within these few.
const InitPids = 10

// InputPids is what an init takes besides that gives its command input.
const InputPids = 2

// cpuPeriod is the period of CPU quotas in microseconds.
const cpuPeriod = 100_000

// ErrUnavailable is returned by Open where no cgroup file system can be used.
var ErrUnavailable = errors.New("cgroups are not available")

// ParentName returns the name of a node's parent group, for its uuid.
func ParentName(nodeUUID string) string {
	return "errand-" + nodeUUID[:min(8, len(nodeUUID))]
}

// hierarchy is one mounted tree.
type hierarchy struct {
	// controller is the v1 controller, or "" for a v2 tree.
	controller string
	path       string
}

// Parent is the group of a node, above those of its sandboxes. It is safe for
// concurrent use.
type Parent struct {
	name string
	// unified tells that the v2 tree has the controllers.
	unified bool
	trees   []hierarchy
}

// Open finds the hierarchies below root (Root, outside of tests). It makes nothing.
func Open(root, name string) (*Parent, error) {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00\n") {
		return nil, fmt.Errorf("open cgroup: bad name %q", name)
	}
	p := &Parent{name: name}
	if isFile(filepath.Join(root, "cgroup.controllers")) {
		p.unified = true
		p.trees = []hierarchy{{path: root}}
		return p, nil
	}
	if tree := filepath.Join(root, "unified"); isFile(filepath.Join(tree, "cgroup.procs")) {
		p.trees = append(p.trees, hierarchy{path: tree})
	}
	for _, c := range []struct {
		controller string
		names      []string
	}{
		{"memory", []string{"memory"}},
		{"pids", []string{"pids"}},
		{"cpu", []string{"cpu", "cpu,cpuacct"}},
		{"freezer", []string{"freezer"}},
	} {
		for _, name := range c.names {
			if tree := filepath.Join(root, name); isFile(filepath.Join(tree, "cgroup.procs")) {
				p.trees = append(p.trees, hierarchy{controller: c.controller, path: tree})
				break
			}
		}
	}
	if len(p.trees) == 0 {
		return nil, fmt.Errorf("open cgroup %s below %s: %w", name, root, ErrUnavailable)
	}
	return p, nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// Name returns the parent's name.
func (p *Parent) Name() string { return p.name }

// List returns the names of the groups that exist in any hierarchy, in no order.
func (p *Parent) List() ([]string, error) {
	seen := map[string]bool{}
	var names []string
	for _, tree := range p.trees {
		entries, err := os.ReadDir(filepath.Join(tree.path, p.name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list cgroups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() && !seen[e.Name()] {
				seen[e.Name()] = true
				names = append(names, e.Name())
			}
		}
	}
	return names, nil
}

// Remove removes the parent's own directories; groups in it must be gone.
func (p *Parent) Remove() error {
	var all error
	for _, tree := range p.trees {
		if err := rmdir(filepath.Join(tree.path, p.name)); err != nil {
			all = errors.Join(all, fmt.Errorf("remove cgroup: %w", err))
		}
	}
	return all
}

// Group returns the group of a sandbox, which need not exist.
func (p *Parent) Group(id string) *Group {
	g := &Group{parent: p, id: id}
	for _, tree := range p.trees {
		g.dirs = append(g.dirs, hierarchy{controller: tree.controller, path: filepath.Join(tree.path, p.name, id)})
	}
	return g
}

// Group is the group of one sandbox.
type Group struct {
	parent *Parent
	id     string
	dirs   []hierarchy
}

// Path returns the path as runtimes want it: "/PARENT/ID".
func (g *Group) Path() string { return "/" + g.parent.name + "/" + g.id }

// Limits are the limits of a group; 0 means none.
type Limits struct {
	// CPUMillis is the CPU time per second in milliseconds.
	CPUMillis int64
	// MemoryBytes limits memory and swap together.
	MemoryBytes int64
	Pids        int64
}

// Validate returns an error that is safe to show for limits that can not work.
func (l Limits) Validate() error {
	switch {
	case l.CPUMillis < 0 || l.MemoryBytes < 0 || l.Pids < 0:
		return errors.New("a limit is negative")
	case l.MemoryBytes > 0 && l.MemoryBytes < MinMemoryBytes:
		return fmt.Errorf("the memory limit is below the minimum of %d bytes", MinMemoryBytes)
	case l.CPUMillis > 0 && l.CPUMillis < 10:
		return errors.New("the CPU limit is below the minimum of 10 millis")
	}
	return nil
}

// needs tells which limits want a controller, in a fixed order.
func (l Limits) needs() []string {
	var controllers []string
	for _, c := range []struct {
		controller string
		limit      int64
	}{{"memory", l.MemoryBytes}, {"pids", l.Pids}, {"cpu", l.CPUMillis}} {
		if c.limit != 0 {
			controllers = append(controllers, c.controller)
		}
	}
	return controllers
}

// Enforces returns an error that is safe to show if there is a limit whose controller
// this parent lacks. A nil parent has none.
func (p *Parent) Enforces(l Limits) error {
	var has []string
	if p != nil && p.unified {
		// One that can not be read names none.
		b, _ := os.ReadFile(filepath.Join(p.trees[0].path, "cgroup.controllers"))
		has = strings.Fields(string(b))
	} else if p != nil {
		for _, tree := range p.trees {
			has = append(has, tree.controller)
		}
	}
	for _, controller := range l.needs() {
		if !slices.Contains(has, controller) {
			return fmt.Errorf("the %s limit can not be enforced here: no cgroup controller %q", controller, controller)
		}
	}
	return nil
}

// Create makes the group with its limits. It leaves out hierarchies that this group
// has no need of: each costs every start some time.
func (g *Group) Create(l Limits) error {
	if err := l.Validate(); err != nil {
		return fmt.Errorf("create cgroup %s: %w", g.id, err)
	}
	if g.parent.unified {
		return g.createUnified(l)
	}
	needs, killable := l.needs(), false
	for _, dir := range g.dirs {
		switch dir.controller {
		case "":
		case "freezer":
			if killable {
				continue
			}
		default:
			if !slices.Contains(needs, dir.controller) {
				continue
			}
		}
		if err := mkdir(dir.path); err != nil {
			return fmt.Errorf("create cgroup %s: %w", g.id, err)
		}
		if dir.controller == "" {
			killable = isFile(filepath.Join(dir.path, "cgroup.kill"))
		}
		if err := limitV1(dir, l); err != nil {
			return fmt.Errorf("create cgroup %s: %w", g.id, err)
		}
	}
	return nil
}

func limitV1(dir hierarchy, l Limits) error {
	switch dir.controller {
	case "memory":
		limit := strconv.FormatInt(l.MemoryBytes, 10)
		if err := write(dir.path, "memory.limit_in_bytes", limit); err != nil {
			return err
		}
		// Absent without swap accounting.
		if err := write(dir.path, "memory.memsw.limit_in_bytes", limit); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	case "pids":
		return write(dir.path, "pids.max", strconv.FormatInt(l.Pids, 10))
	case "cpu":
		if err := write(dir.path, "cpu.cfs_period_us", strconv.Itoa(cpuPeriod)); err != nil {
			return err
		}
		return write(dir.path, "cpu.cfs_quota_us", strconv.FormatInt(l.CPUMillis*cpuPeriod/1000, 10))
	}
	return nil
}

func (g *Group) createUnified(l Limits) error {
	tree := g.parent.trees[0].path
	parent := filepath.Join(tree, g.parent.name)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return fmt.Errorf("create cgroup %s: %w", g.id, err)
	}
	for _, dir := range []string{tree, parent} {
		for _, c := range []string{"+memory", "+pids", "+cpu"} {
			// What a controller that is not there can not limit shows below.
			_ = write(dir, "cgroup.subtree_control", c)
		}
	}
	dir := g.dirs[0].path
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create cgroup %s: %w", g.id, err)
	}
	set := func(file string, limit int64, value string) error {
		if limit == 0 {
			return nil
		}
		return write(dir, file, value)
	}
	err := errors.Join(
		set("memory.max", l.MemoryBytes, strconv.FormatInt(l.MemoryBytes, 10)),
		set("pids.max", l.Pids, strconv.FormatInt(l.Pids, 10)),
		set("cpu.max", l.CPUMillis, fmt.Sprintf("%d %d", l.CPUMillis*cpuPeriod/1000, cpuPeriod)),
	)
	if swap := set("memory.swap.max", l.MemoryBytes, "0"); swap != nil && !errors.Is(swap, fs.ErrNotExist) {
		err = errors.Join(err, swap)
	}
	if err != nil {
		return fmt.Errorf("create cgroup %s: %w", g.id, err)
	}
	return nil
}

// mkdir makes a directory below one that is there but for the first time.
func mkdir(path string) error {
	err := unix.Mkdir(path, 0o755)
	if err == nil || errors.Is(err, unix.EEXIST) {
		return nil
	}
	return os.MkdirAll(path, 0o755)
}

// Add moves a process into the group.
func (g *Group) Add(pid int) error {
	for _, dir := range g.dirs {
		err := write(dir.path, "cgroup.procs", strconv.Itoa(pid))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("join cgroup %s: %w", g.id, err)
		}
	}
	return nil
}

func write(dir, file, value string) error {
	// Without O_CREATE: a plain file in a directory that is no cgroup helps nobody.
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
