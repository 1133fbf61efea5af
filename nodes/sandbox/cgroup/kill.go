package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	pollMin = 500 * time.Microsecond
	pollMax = 20 * time.Millisecond
)

// Kill kills every process of the group, forks in progress and frozen ones
// included, and returns when none is left. killed tells whether any was alive. A
// group that does not exist is empty. The context's end is an error: processes may
// be left then.
func (g *Group) Kill(ctx context.Context) (killed bool, err error) {
	wait := pollMin
	for {
		alive, err := g.alive()
		if err != nil {
			return killed, fmt.Errorf("kill cgroup %s: %w", g.id, err)
		}
		if len(alive) == 0 {
			return killed, nil
		}
		killed = true
		g.strike(alive)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return killed, fmt.Errorf("kill cgroup %s: %d processes left: %w", g.id, len(alive), ctx.Err())
		case <-timer.C:
		}
		wait = min(2*wait, pollMax)
	}
}

// strike kills what is there now. What can not be written shows in the next count.
func (g *Group) strike(alive []int) {
	freezer := ""
	for _, dir := range g.dirs {
		switch dir.controller {
		case "":
			if write(dir.path, "cgroup.kill", "1") != nil && g.parent.unified {
				_ = write(dir.path, "cgroup.freeze", "1")
				defer func() { _ = write(dir.path, "cgroup.freeze", "0") }()
			}
		case "freezer":
			freezer = dir.path
		}
	}
	if freezer != "" {
		// Frozen processes do not fork; thawed ones die of the pending signal.
		_ = write(freezer, "freezer.state", "FROZEN")
		defer func() { _ = write(freezer, "freezer.state", "THAWED") }()
		if again, err := g.alive(); err == nil {
			alive = again
		}
	}
	for _, pid := range alive {
		if pid > 0 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// Empty tells whether no process of the group is alive; zombies are not.
func (g *Group) Empty() (bool, error) {
	alive, err := g.alive()
	if err != nil {
		return false, fmt.Errorf("look into cgroup %s: %w", g.id, err)
	}
	return len(alive) == 0, nil
}

// Exists tells whether the group is there in any hierarchy.
func (g *Group) Exists() bool {
	for _, dir := range g.dirs {
		if _, err := os.Lstat(dir.path); err == nil {
			return true
		}
	}
	return false
}

// alive returns the live processes of the group and of all groups below it. One
// that can not be seen from here is 0.
func (g *Group) alive() ([]int, error) {
	seen := map[int]bool{}
	var alive []int
	for _, dir := range g.dirs {
		err := walk(dir.path, func(path string) error {
			b, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
			if err != nil {
				return err
			}
			for field := range strings.FieldsSeq(string(b)) {
				pid, err := strconv.Atoi(field)
				if err != nil || seen[pid] {
					continue
				}
				seen[pid] = true
				if pid == 0 || !dead(pid) {
					alive = append(alive, pid)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return alive, nil
}

// dead tells whether a process is gone or a zombie. The last thread of a zombie may
// be dying still; the group can be removed only after it.
func dead(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
	}
	// The name in parentheses may hold anything; the state stands after it.
	rest := strings.TrimSpace(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	return strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}

// walk calls visit for a directory and those below it, lowest first. What vanishes
// meanwhile is left out.
func walk(path string, visit func(string) error) error {
	entries, err := os.ReadDir(path)
	if vanished(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := walk(filepath.Join(path, e.Name()), visit); err != nil {
				return err
			}
		}
	}
	if err := visit(path); err != nil && !vanished(err) {
		return err
	}
	return nil
}

func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

// Remove removes the group's directories; it waits, while the context lasts, for the
// kernel to let go of processes that are dead. It may be repeated.
func (g *Group) Remove(ctx context.Context) error {
	wait := pollMin
	for {
		err := g.remove()
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("remove cgroup %s: %w", g.id, err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("remove cgroup %s: %w", g.id, err)
		case <-timer.C:
		}
		wait = min(2*wait, pollMax)
	}
}

func (g *Group) remove() error {
	var all error
	for _, dir := range g.dirs {
		all = errors.Join(all, walk(dir.path, rmdir))
	}
	return all
}

// rmdir removes an empty directory and nothing else; one that is gone is fine.
func rmdir(path string) error {
	err := unix.Rmdir(path)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return &fs.PathError{Op: "rmdir", Path: path, Err: err}
}
