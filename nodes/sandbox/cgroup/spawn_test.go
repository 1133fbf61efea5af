package cgroup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// spawn makes a process in the group that lives until its standard input ends.
func spawn(t *testing.T, g *Group, script string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", script)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	err := g.Spawn(func(fd int) error {
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: fd >= 0, CgroupFD: fd}
		return cmd.Start()
	})
	if cmd.Process != nil {
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}
	if err != nil {
		t.Fatal(err)
	}
	return cmd
}

func TestSpawnedProcessIsAloneInItsGroupFromBirth(t *testing.T) {
	g := parent(t).Group("born")
	// The limit has room for the one process only, not for a thread that makes it.
	if err := g.Create(Limits{Pids: 1, MemoryBytes: 64 << 20, CPUMillis: 500}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = g.Kill(bounded(t)); _ = g.Remove(bounded(t)) })
	cmd := spawn(t, g, "read end")
	in := 0
	for _, dir := range g.dirs {
		b, err := os.ReadFile(filepath.Join(dir.path, "cgroup.procs"))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		in++
		if got := strings.Fields(string(b)); len(got) != 1 || got[0] != strconv.Itoa(cmd.Process.Pid) {
			t.Errorf("%s holds %q, want %d only", dir.path, got, cmd.Process.Pid)
		}
		if dir.controller != "pids" {
			continue
		}
		tasks, err := os.ReadFile(filepath.Join(dir.path, "tasks"))
		if err != nil || len(strings.Fields(string(tasks))) != 1 {
			t.Errorf("%s has the threads %q, %v", dir.path, tasks, err)
		}
		if limit, err := os.ReadFile(filepath.Join(dir.path, "pids.max")); err != nil || strings.TrimSpace(string(limit)) != "1" {
			t.Errorf("%s has the limit %q, %v", dir.path, limit, err)
		}
	}
	if in == 0 {
		t.Error("no hierarchy has the group")
	}
}

func TestSpawnKeepsTheErrorOfTheStart(t *testing.T) {
	g := parent(t).Group("failing")
	if err := g.Create(Limits{Pids: 5}); err != nil {
		t.Fatal(err)
	}
	if err := g.Spawn(func(int) error { return unix.ENOEXEC }); !errors.Is(err, unix.ENOEXEC) {
		t.Errorf("got %v", err)
	}
	// No thread of this process is left in it.
	if err := g.Remove(bounded(t)); err != nil {
		t.Error(err)
	}
}

// A group without a limit costs no hierarchy more than it takes to kill it.
func TestGroupIsMadeForItsLimitsOnly(t *testing.T) {
	p := parent(t)
	if p.unified {
		t.Skip("v2 has one hierarchy")
	}
	for name, c := range map[string]struct {
		limits Limits
		want   []string
	}{
		"none": {},
		"pids": {Limits{Pids: 5}, []string{"pids"}},
		"all":  {Limits{Pids: 5, MemoryBytes: 64 << 20, CPUMillis: 500}, []string{"memory", "pids", "cpu"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := p.Group(name)
			if err := g.Create(c.limits); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, dir := range g.dirs {
				if _, err := os.Stat(dir.path); err == nil && dir.controller != "" && dir.controller != "freezer" {
					got = append(got, dir.controller)
				}
			}
			if strings.Join(got, " ") != strings.Join(c.want, " ") {
				t.Errorf("made for %q, want %q", got, c.want)
			}
			if err := g.Remove(bounded(t)); err != nil {
				t.Error(err)
			}
		})
	}
}
