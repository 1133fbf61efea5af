// Package janitor gives a process of tests a directory of its own, and removes what a
// process that was killed has left in its: daemons, containers, cgroups, mounts, files.
//
// Whose a directory is says a lock on a file in it, which the kernel gives back when its
// holder is no more, however it ended. What a living process holds is never touched.
package janitor

import (
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

	"github.com/errand-run/errand/nodes/inventory"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/cgroup"
	"github.com/errand-run/errand/nodes/sandbox/guest/pid"
)

const (
	// prefix begins the names of the directories; short, since there are sockets in them.
	prefix    = "errand-t-"
	ownerFile = "owner"
	// endMax is how long what is killed may take to end.
	endMax   = 30 * time.Second
	endEvery = 20 * time.Millisecond
)

// Home is the directory of this process.
type Home struct {
	Dir  string
	lock *os.File
}

// Open removes what processes that are no more have left below parent, and makes a
// directory there for this one. What could not be removed is the error; the home is there
// all the same.
func Open(parent string) (*Home, error) {
	swept := sweep(parent)
	dir, err := os.MkdirTemp(parent, prefix)
	if err != nil {
		return nil, errors.Join(swept, err)
	}
	// It gets its name once it is locked: nobody finds it without.
	lock, err := os.Create(filepath.Join(dir, ownerFile+".new"))
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		err = os.Rename(lock.Name(), filepath.Join(dir, ownerFile))
	}
	if err != nil {
		return nil, errors.Join(swept, err, os.RemoveAll(dir))
	}
	return &Home{Dir: dir, lock: lock}, swept
}

// Close removes the directory.
func (h *Home) Close() error {
	err := os.RemoveAll(h.Dir)
	return errors.Join(err, h.lock.Close())
}

// sweep clears the directories whose owners are no more.
func sweep(parent string) error {
	owners, err := filepath.Glob(filepath.Join(parent, prefix+"*", ownerFile))
	for _, owner := range owners {
		err = errors.Join(err, sweepOne(owner))
	}
	return err
}

func sweepOne(owner string) error {
	lock, err := os.Open(owner)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // another one was faster
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil //nolint:nilerr // its owner lives, or another one clears it
	}
	if err := clear(filepath.Dir(owner)); err != nil {
		return fmt.Errorf("clear %s of a process that is no more: %w", filepath.Dir(owner), err)
	}
	return nil
}

// clear ends and removes all that is of a directory's nodes, and then itself.
func clear(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), endMax)
	defer cancel()
	nodes, err := nodesIn(dir)
	if err != nil {
		return err
	}
	things := thingsOf(ctx, nodes)
	for killed := killAll(dir, things); killed > 0; killed = killAll(dir, things) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d processes do not end", killed)
		case <-time.After(endEvery):
		}
		things = thingsOf(ctx, nodes)
	}
	var all error
	for _, thing := range things {
		if thing.Kind == sandbox.KindRuntime || thing.Kind == sandbox.KindSocket {
			all = errors.Join(all, os.RemoveAll(thing.Name))
		}
	}
	for _, node := range nodes {
		all = errors.Join(all, removeGroups(ctx, node))
	}
	return errors.Join(all, unmount(dir), os.RemoveAll(dir))
}

// nodesIn finds the nodes that have their data below a directory.
func nodesIn(dir string) ([]inventory.Node, error) {
	var nodes []inventory.Node
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return ignoreAbsence(err)
		case entry.IsDir() && (entry.Name() == "containerd" || entry.Name() == "logs"):
			return filepath.SkipDir // no node is in there, but very much else
		case entry.Name() != inventory.UUIDFile:
			return nil
		}
		node, err := inventory.At(filepath.Dir(path))
		if err == nil {
			nodes = append(nodes, node)
		}
		return err
	})
	return nodes, err
}

// thingsOf takes inventories of nodes. What can not be looked at, as containerd when it is
// gone, goes with its files.
func thingsOf(ctx context.Context, nodes []inventory.Node) []sandbox.Thing {
	var all []sandbox.Thing
	for _, node := range nodes {
		things, _ := node.Take(ctx)
		all = append(all, things...)
	}
	return all
}

// removeGroups removes a node's cgroups, in which nothing runs any more.
func removeGroups(ctx context.Context, node inventory.Node) error {
	parent, err := cgroup.Open(cgroup.Root, cgroup.ParentName(node.UUID))
	if errors.Is(err, cgroup.ErrUnavailable) {
		return nil
	}
	if err != nil {
		return err
	}
	names, err := parent.List()
	for _, name := range names {
		err = errors.Join(err, parent.Group(name).Remove(ctx))
	}
	return errors.Join(err, parent.Remove())
}

// programs are those that a process of tests starts, or lets others start, and that
// outlive it.
var programs = []string{"errand-node", "containerd", "containerd-shim", "sandbox-init", "runc"}

// killAll kills the processes of an inventory, and those programs whose command lines
// name the directory, and returns how many there were.
func killAll(dir string, things []sandbox.Thing) (killed int) {
	var numbers []int
	for _, thing := range things {
		if thing.Kind != sandbox.KindProcess {
			continue
		}
		if number, err := strconv.Atoi(strings.Fields(thing.Name)[0]); err == nil {
			numbers = append(numbers, number)
		}
	}
	entries, _ := os.ReadDir("/proc") // without it there is nothing to be done
	for _, entry := range entries {
		number, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		program, _, _ := strings.Cut(string(line), "\x00")
		program = filepath.Base(program)
		if strings.Contains(string(line), dir+"/") && slices.ContainsFunc(programs, func(one string) bool { return strings.HasPrefix(program, one) }) {
			numbers = append(numbers, number)
		}
	}
	for _, number := range numbers {
		if ref, err := pid.Of(number); err == nil && ref.Signal(unix.SIGKILL) == nil {
			killed++
		}
	}
	return killed
}

// unmount takes away what is mounted below a directory, the last one first.
func unmount(dir string) error {
	content, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	lines := strings.Split(string(content), "\n")
	for _, line := range slices.Backward(lines) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			err = errors.Join(err, unix.Unmount(fields[4], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
		}
	}
	return err
}

// ignoreAbsence also ignores a file system whose server was a process of tests.
func ignoreAbsence(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTCONN) {
		return nil
	}
	return err
}
