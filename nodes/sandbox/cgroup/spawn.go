package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Spawn calls start to make a process that is in the group from its birth; nothing it
// does can come before, and moving it would cost a grace period of the kernel. start
// gets a descriptor of the group's v2 directory for SysProcAttr.CgroupFD, or -1 where
// there is none, and must make the process on the thread that calls it. Linux 5.7 is
// needed for v2.
//
// In v1 hierarchies, which groups with a limit have, a child is where the thread is
// that made it: the thread goes into the group and back. An error of Spawn after start
// has succeeded means that the process is there and to be killed.
func (g *Group) Spawn(start func(fd int) error) error {
	fd := -1
	var entered []hierarchy
	for _, dir := range g.dirs {
		if _, err := os.Lstat(dir.path); err != nil {
			continue
		}
		if dir.controller != "" {
			entered = append(entered, dir)
			continue
		}
		var err error
		if fd, err = unix.Open(dir.path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return fmt.Errorf("open cgroup %s: %w", g.id, err)
		}
		defer unix.Close(fd)
	}
	if len(entered) == 0 {
		return start(fd)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	origins, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil {
		return fmt.Errorf("start in cgroup %s: %w", g.id, err)
	}
	for _, dir := range entered {
		if err = enter(dir); err != nil {
			break
		}
	}
	if err == nil {
		err = start(fd)
	}
	for _, dir := range entered {
		err = errors.Join(err, leave(dir, g.origin(dir, string(origins))))
	}
	if err != nil {
		return fmt.Errorf("start in cgroup %s: %w", g.id, err)
	}
	return nil
}

// enter moves the calling thread into a v1 group. It must not take a place from the
// process that it makes there.
func enter(dir hierarchy) error {
	if dir.controller == "pids" {
		if err := changePidsMax(dir, 1); err != nil {
			return err
		}
	}
	return write(dir.path, "tasks", "0")
}

// leave undoes enter, as far as that was done.
func leave(dir hierarchy, origin string) error {
	err := write(origin, "tasks", "0")
	if dir.controller == "pids" {
		err = errors.Join(err, changePidsMax(dir, -1))
	}
	return err
}

// origin returns the directory in which the calling thread was, from what
// /proc/thread-self/cgroup said, or the parent's where that can not be seen from here.
func (g *Group) origin(dir hierarchy, cgroups string) string {
	parent := filepath.Dir(dir.path)
	for line := range strings.Lines(cgroups) {
		// NUMBER:CONTROLLER,CONTROLLER:PATH
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 || !slices.Contains(strings.Split(fields[1], ","), dir.controller) {
			continue
		}
		path := filepath.Join(filepath.Dir(parent), fields[2])
		if isFile(filepath.Join(path, "tasks")) {
			return path
		}
	}
	return parent
}

func changePidsMax(dir hierarchy, by int64) error {
	b, err := os.ReadFile(filepath.Join(dir.path, "pids.max"))
	if err != nil {
		return err
	}
	limit, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return &fs.PathError{Op: "parse", Path: filepath.Join(dir.path, "pids.max"), Err: err}
	}
	return write(dir.path, "pids.max", strconv.FormatInt(limit+by, 10))
}
