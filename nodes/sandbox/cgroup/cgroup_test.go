package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// parent makes a parent of this test's own on the machine's cgroups.
func parent(t *testing.T) *Parent {
	t.Helper()
	p, err := Open(Root, fmt.Sprintf("errand-test-%d-%s", os.Getpid(), strings.ToLower(filepath.Base(t.Name()))))
	if err == nil && os.Geteuid() != 0 {
		err = ErrUnavailable
	}
	if errors.Is(err, ErrUnavailable) && os.Getenv("CI") != "true" {
		t.Skipf("needs root and cgroups: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Remove(); err != nil {
			t.Errorf("left over: %v", err)
		}
	})
	return p
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// join starts a shell that waits until it is in the group, then runs a script.
func join(t *testing.T, g *Group, script string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", "read go; "+script)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	reaped := make(chan struct{})
	go func() { _ = cmd.Wait(); close(reaped) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-reaped })
	if err := g.Add(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func TestKillEmptiesAGroupOfForkers(t *testing.T) {
	for name, strip := range map[string]func(*Group){
		"as the host has it": func(*Group) {},
		// The v1 way: freeze, kill all, thaw.
		"without cgroup.kill": func(g *Group) { g.dirs = g.dirs[1:] },
	} {
		t.Run(name, func(t *testing.T) {
			p := parent(t)
			g := p.Group("forkers")
			if p.unified && name != "as the host has it" {
				t.Skip("a v2 host has no other way")
			}
			strip(g)
			if err := g.Create(Limits{Pids: 60, MemoryBytes: 256 << 20, CPUMillis: 500}); err != nil {
				t.Fatal(err)
			}
			join(t, g, `f() { sleep 0.01; f & f; }; for i in 1 2 3 4; do (trap "" TERM; while :; do (sleep 0.01 &) ; sleep 0.01; done) & done 2>/dev/null; wait`)
			for {
				if alive, err := g.alive(); err != nil {
					t.Fatal(err)
				} else if len(alive) > 5 {
					break
				}
				time.Sleep(time.Millisecond)
			}
			if empty, err := g.Empty(); err != nil || empty {
				t.Fatalf("empty: %v, %v", empty, err)
			}
			killed, err := g.Kill(bounded(t))
			if err != nil || !killed {
				t.Fatalf("kill: %v, %v", killed, err)
			}
			if empty, err := g.Empty(); err != nil || !empty {
				t.Fatalf("empty: %v, %v", empty, err)
			}
			if killed, err := g.Kill(bounded(t)); err != nil || killed {
				t.Fatalf("kill again: %v, %v", killed, err)
			}
			for range 2 {
				if err := g.Remove(bounded(t)); err != nil {
					t.Fatal(err)
				}
			}
			if g.Exists() {
				t.Fatal("it still exists")
			}
		})
	}
}

func TestRemoveRefusesWhatIsAlive(t *testing.T) {
	g := parent(t).Group("alive")
	if err := g.Create(Limits{}); err != nil {
		t.Fatal(err)
	}
	join(t, g, "sleep 60")
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := g.Remove(short); err == nil {
		t.Fatal("a group with a live process was removed")
	}
	if _, err := g.Kill(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if err := g.Remove(bounded(t)); err != nil {
		t.Fatal(err)
	}
}

func TestGroupsBelowAGroupAreKilledAndRemoved(t *testing.T) {
	p := parent(t)
	g := p.Group("outer")
	if err := g.Create(Limits{}); err != nil {
		t.Fatal(err)
	}
	inner := p.Group("outer/inner")
	for _, dir := range inner.dirs {
		if _, err := os.Stat(filepath.Dir(dir.path)); err == nil {
			if err := os.Mkdir(dir.path, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	join(t, inner, "sleep 60")
	if killed, err := g.Kill(bounded(t)); err != nil || !killed {
		t.Fatalf("kill: %v, %v", killed, err)
	}
	if names, err := p.List(); err != nil || len(names) != 1 || names[0] != "outer" {
		t.Fatalf("list: %v, %v", names, err)
	}
	if err := g.Remove(bounded(t)); err != nil {
		t.Fatal(err)
	}
}

func TestAbsentGroupIsEmpty(t *testing.T) {
	g := parent(t).Group("absent")
	if killed, err := g.Kill(bounded(t)); err != nil || killed {
		t.Fatalf("kill: %v, %v", killed, err)
	}
	if n, err := g.OOMKills(); err != nil || n != 0 {
		t.Fatalf("OOM kills: %d, %v", n, err)
	}
	if err := g.Remove(bounded(t)); err != nil {
		t.Fatal(err)
	}
}

// The files of a v2 host, as far as a plain directory can stand for them.
func TestUnifiedLayoutIsWrittenAndRead(t *testing.T) {
	root := t.TempDir()
	put := func(dir string, files map[string]string) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, content := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	group := filepath.Join(root, "errand-x", "id")
	put(root, map[string]string{"cgroup.controllers": "cpu memory pids\n", "cgroup.subtree_control": ""})
	put(group, map[string]string{
		"cgroup.procs": "", "memory.max": "max\n", "memory.swap.max": "max\n", "pids.max": "max\n", "cpu.max": "max 100000\n",
		"memory.events": "low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\noom_group_kill 0\n",
		"memory.peak":   "67104768\n",
	})
	p, err := Open(root, "errand-x")
	if err != nil {
		t.Fatal(err)
	}
	g := p.Group("id")
	if err := g.Create(Limits{CPUMillis: 1500, MemoryBytes: 64 << 20, Pids: 10}); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"memory.max": "67108864", "memory.swap.max": "0", "pids.max": "10", "cpu.max": "150000 100000"} {
		b, err := os.ReadFile(filepath.Join(group, file))
		if err != nil || !strings.HasPrefix(string(b), want) {
			t.Errorf("%s is %q, %v", file, b, err)
		}
	}
	if n, err := g.OOMKills(); err != nil || n != 2 {
		t.Errorf("OOM kills: %d, %v", n, err)
	}
	if n, err := g.MemoryPeak(); err != nil || n != 67104768 {
		t.Errorf("memory peak: %d, %v", n, err)
	}
	for content, fails := range map[string]bool{"much\n": true, "-1\n": true, "0\n": false} {
		put(group, map[string]string{"memory.peak": content})
		if n, err := g.MemoryPeak(); n != 0 || (err != nil) != fails {
			t.Errorf("memory peak of %q: %d, %v", content, n, err)
		}
	}
	// Older kernels have none.
	if err := os.Remove(filepath.Join(group, "memory.peak")); err != nil {
		t.Fatal(err)
	}
	if n, err := g.MemoryPeak(); err != nil || n != 0 {
		t.Errorf("memory peak of a kernel that has none: %d, %v", n, err)
	}
}

func TestLimitsThatCanNotWorkAreRefused(t *testing.T) {
	for name, l := range map[string]Limits{
		"negative": {Pids: -1}, "little memory": {MemoryBytes: MinMemoryBytes - 1}, "little CPU": {CPUMillis: 9},
	} {
		if l.Validate() == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := Open(t.TempDir(), "x"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("without cgroups: %v", err)
	}
	for _, name := range []string{"", "..", "a/b"} {
		if _, err := Open(Root, name); err == nil || errors.Is(err, ErrUnavailable) {
			t.Errorf("name %q: %v", name, err)
		}
	}
}
