package daemon_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/nodes/sandbox/cgroup"
)

// powered is a node on a machine of its own that can lose its power: a PID namespace
// whose first process takes everything with it, its mounts, a boot id and a runtime
// directory that no boot has in common with the one before.
type powered struct {
	*node
	boot, runtime string
	boots         int
}

// powerScript makes the machine. What runs in it is a child of the shell, which reaps
// what is left to it as the first process of a machine does.
const powerScript = `#!/bin/sh
exec unshare --mount --pid --fork --kill-child --mount-proc sh -c '
	mount --bind %[1]s /proc/sys/kernel/random/boot_id || exit 1
	mkdir -p /run/containerd && mount -t tmpfs tmpfs /run/containerd || exit 1
	%[2]s "$@" &
	wait' sh "$@"
`

func startPowered(t *testing.T, flags ...string) *powered {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root, for a machine of its own")
		}
		t.Skip("needs root, for a machine of its own")
	}
	dir := t.TempDir()
	p := &powered{boot: filepath.Join(dir, "boot_id"), runtime: t.TempDir()}
	script := filepath.Join(dir, "errand-node")
	text := fmt.Sprintf(powerScript, p.boot, filepath.Join(binaries, "errand-node"))
	writeProgram(t, script, text)
	p.node = &node{data: t.TempDir(), binary: script, flags: append(flags, "--dev", "--runtime-dir", p.runtime)}
	p.powerOn(t)
	t.Cleanup(func() {
		p.cut(t)
		if strings.Contains(p.log.String(), "DATA RACE") {
			t.Errorf("the daemon reported a data race:\n%s", p.log)
		}
	})
	return p
}

// bootID is that of the boot that goes on, or was the last.
func (p *powered) bootID() string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", p.boots) }

func (p *powered) powerOn(t *testing.T) {
	t.Helper()
	p.boots++
	if err := os.WriteFile(p.boot, []byte(p.bootID()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.start(t)
}

// cut takes the power away: everything ends at once, and what is kept in memory is gone.
func (p *powered) cut(t *testing.T) {
	t.Helper()
	uuid, err := os.ReadFile(filepath.Join(p.data, "node.uuid"))
	if err != nil {
		t.Fatal(err)
	}
	p.crash(t)
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) { // the kernel tells nobody when the last one is gone
		err := removeCgroups(cgroup.ParentName(strings.TrimSpace(string(uuid))))
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("a machine without power still runs something: %v", err)
		}
	}
	kept, err := os.ReadDir(p.runtime)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range kept {
		if err := os.RemoveAll(filepath.Join(p.runtime, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
}

// removeCgroups removes those of a node, which must be empty, in every tree.
func removeCgroups(parent string) error {
	var dirs []string
	for _, root := range []string{cgroup.Root, filepath.Join(cgroup.Root, "*")} {
		for _, below := range []string{"", "*", "*/*"} {
			found, err := filepath.Glob(filepath.Join(root, parent, below))
			if err != nil {
				return err
			}
			dirs = append(dirs, found...)
		}
	}
	slices.SortFunc(dirs, func(a, b string) int { return len(b) - len(a) })
	for _, dir := range slices.Compact(dirs) {
		info, err := os.Stat(dir)
		if err != nil || !info.IsDir() {
			continue
		}
		if err := os.Remove(dir); err != nil {
			return err
		}
	}
	return nil
}

// NOD-03: after a power cut no run of the boot before is taken for running or for ended
// well. What can be tried again is, and the record says that the machine was restarted.
func TestPowerCutEndsWhatRanAndSaysSo(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			if k.name == "containerd" {
				needContainerd(t)
			}
			p := startPowered(t, k.flags...)
			if k.name == "containerd" {
				p.importBusybox(t)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			once := k.detach(t, p.node, nil, "sleep", "600")
			again := p.create(t, fmt.Sprintf(`{"spec": {%s, "command": ["sleep", "600"], "retry": {"retries": 1, "backoff": "0.1s"}}}`, k.spec))
			ended := k.detach(t, p.node, nil, "sh", "-c", "exit 4")
			p.awaitRunning(ctx, t, once)
			p.awaitRunning(ctx, t, again)
			if r := p.errand(t, "wait", ended); r.code != 4 {
				t.Fatalf("wait gave %+v", r)
			}
			before := p.bootID()
			p.cut(t)
			at := time.Now()
			if alive := append(processesOf(t, once), processesOf(t, again)...); len(alive) > 0 {
				t.Fatalf("a machine without power runs %v", alive)
			}
			p.powerOn(t)
			up := time.Now()
			if r := p.errand(t, "wait", "--timeout", "60s", once); r.code != 125 {
				t.Errorf("%s after the boot wait gave %+v\nnode: %s", time.Since(up), r, p.log)
			}
			p.awaitRunning(ctx, t, again)
			if took := p.show(t, again).StartedAt.Sub(up); took > 10*time.Second+busy {
				t.Errorf("the other attempt runs %s after the boot", took)
			}

			s := p.show(t, once)
			if s.Status != "FAILED" || s.Reason != "SANDBOX_LOST" || s.ExitCode != nil || len(s.Attempts) != 1 {
				t.Errorf("the run without retries is %+v", s)
			}
			// The time of the end is that at which the loss was found out: nobody knows more.
			if s.EndedAt.Before(at.Add(-time.Second)) || s.EndedAt.After(up.Add(10*time.Second+busy)) {
				t.Errorf("it ended at %s; the power was gone at %s, the node back at %s", s.EndedAt, at, up)
			}
			boots := "the machine was restarted (its boot id was " + before + " and is " + p.bootID() + ")"
			if !strings.Contains(s.Message, boots) {
				t.Errorf("it says %q", s.Message)
			}
			if lost := p.eventsOf(t, once, "LOST"); len(lost) != 1 || !strings.Contains(lost[0].Message, boots) {
				t.Errorf("its events of the loss are %+v", lost)
			}
			s = p.show(t, again)
			if s.Status != "RUNNING" || s.Attempt != 2 || s.Attempts[0].Reason != "SANDBOX_LOST" || s.Attempts[0].ExitCode != nil {
				t.Errorf("the run with a retry is %+v", s)
			}
			if s := p.show(t, ended); s.Status != "FAILED" || s.ExitCode == nil || *s.ExitCode != 4 || len(s.Attempts) != 1 {
				t.Errorf("the run that had ended before is %+v", s)
			}
			p.errand(t, "cancel", "--force", again)
			if r := p.errand(t, "wait", again); r.code != 130 {
				t.Errorf("wait gave %+v", r)
			}
		})
	}
}
