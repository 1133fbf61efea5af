package daemon_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// moment is one in the life of a run at which somebody cancels it.
type moment struct {
	name string
	// only is the one driver that has it; both when empty.
	only string
	// reach submits a run and returns when it is there; let lets go on what was held for
	// it, if anything was.
	reach func(*testing.T, *cancelBench) (id string, let func())
	// plain and forced are what becomes of it.
	plain, forced canceled
}

// canceled is how a run ends that was canceled.
type canceled struct {
	// code is the observed one, none when nil; any when loose.
	code    []int
	signals []string
	// after and within bound the time from the cancel to the end; without after it may be
	// over before, by an earlier one.
	after, within time.Duration
	// began tells whether the command has begun, where that is sure.
	began bool
	loose bool
}

// cancelBench is a node that can hold a run at each moment.
type cancelBench struct {
	*node
	kind kind
	// hold lets starts wait until it is called again.
	hold func(t *testing.T, on bool)
	// held is a command, after the driver's own arguments, whose start can be held.
	held []string
}

const (
	obeys    = `echo began; exec sleep 600`
	stubborn = `trap "" TERM; echo began; while :; do sleep 0.1; done`
)

// began waits until the command has.
func (b *cancelBench) began(t *testing.T, id string) string {
	t.Helper()
	b.awaitOutput(t, id, "began\n")
	return id
}

func running(script string, flags ...string) func(*testing.T, *cancelBench) (string, func()) {
	return func(t *testing.T, b *cancelBench) (string, func()) {
		return b.began(t, b.kind.detach(t, b.node, flags, "sh", "-c", script)), nil
	}
}

// stopping is reached by a cancel.
func stopping(grace string) func(*testing.T, *cancelBench) (string, func()) {
	return func(t *testing.T, b *cancelBench) (string, func()) {
		id := b.began(t, b.kind.detach(t, b.node, []string{"--stop-grace", grace}, "sh", "-c", stubborn))
		b.errand(t, "cancel", id).want(t, 0, id+"\n", "")
		return id, nil
	}
}

func moments() []moment {
	unstarted := canceled{within: 2 * time.Second}
	return []moment{
		{"queued without room", "", func(t *testing.T, b *cancelBench) (string, func()) {
			blocker := b.began(t, b.kind.detach(t, b.node, []string{"--memory", "256MiB"}, "sh", "-c", obeys))
			id := b.kind.detach(t, b.node, []string{"--memory", "64MiB"}, "sh", "-c", obeys)
			for deadline := time.Now().Add(2 * time.Minute); len(b.eventsOf(t, id, "REFUSED")) == 0; {
				if time.Now().After(deadline) {
					t.Fatalf("it is not refused: %+v", b.show(t, id))
				}
			}
			return id, func() { b.errand(t, "cancel", "--force", blocker) }
		}, unstarted, unstarted},
		{"while its image is pulled", "containerd", func(t *testing.T, b *cancelBench) (string, func()) {
			id := strings.TrimSpace(b.errand(t, "run", "-d", silentRegistry(t)+"/a:1", "--", "true").stdout)
			for deadline := time.Now().Add(2 * time.Minute); !strings.Contains(b.errand(t, "why", id).stdout, "pull"); {
				if time.Now().After(deadline) {
					t.Fatalf("it is not pulled: %+v", b.errand(t, "why", id))
				}
			}
			return id, nil
		}, unstarted, unstarted},
		{"while it is being started", "", func(t *testing.T, b *cancelBench) (string, func()) {
			b.hold(t, true)
			id := b.kind.detach(t, b.node, nil, b.held...)
			for deadline := time.Now().Add(2 * time.Minute); !strings.Contains(b.errand(t, "why", id, "-o", "json").stdout, `"STARTING"`); {
				if time.Now().After(deadline) {
					t.Fatalf("it is not being started: %+v", b.errand(t, "why", id, "-o", "json"))
				}
			}
			return id, func() { b.hold(t, false) }
		}, canceled{loose: true, within: 15 * time.Second}, canceled{loose: true, within: 5 * time.Second}},
		{
			"running", "", running(obeys),
			canceled{[]int{143}, []string{"TERM"}, 0, 2 * time.Second, true, false},
			canceled{[]int{137}, []string{"KILL"}, 0, 2 * time.Second, true, false},
		},
		{
			"running and deaf to TERM", "", running(stubborn, "--stop-grace", "2s"),
			canceled{[]int{137}, []string{"TERM", "KILL"}, 2 * time.Second, 4 * time.Second, true, false},
			canceled{[]int{137}, []string{"KILL"}, 0, 2 * time.Second, true, false},
		},
		{
			"being stopped, with little of the grace left", "", stopping("3s"),
			canceled{[]int{137}, []string{"TERM", "KILL"}, 0, 5 * time.Second, true, false},
			canceled{[]int{137}, []string{"TERM", "KILL"}, 0, 2 * time.Second, true, false},
		},
		{
			"being stopped, with a long grace", "", func(t *testing.T, b *cancelBench) (string, func()) {
				id, _ := stopping("600s")(t, b)
				b.errand(t, "cancel", id).want(t, 0, id+"\n", "") // once more changes nothing
				b.errand(t, "cancel", "--force", id).want(t, 0, id+"\n", "")
				return id, nil
			},
			canceled{[]int{137}, []string{"TERM", "KILL"}, 0, 2 * time.Second, true, false},
			canceled{[]int{137}, []string{"TERM", "KILL"}, 0, 2 * time.Second, true, false},
		},
		{"between two attempts", "", func(t *testing.T, b *cancelBench) (string, func()) {
			id := b.create(t, fmt.Sprintf(`{"spec": {%s, "command": ["sh", "-c", "echo began; exit 1"], "retry": {"retries": 1, "backoff": "600s"}}}`, b.kind.spec))
			for deadline := time.Now().Add(2 * time.Minute); b.show(t, id).Attempt != 2; {
				if time.Now().After(deadline) {
					t.Fatalf("it does not wait for another attempt: %+v", b.show(t, id))
				}
			}
			return id, nil
		}, unstarted, unstarted},
	}
}

// newCancelBench starts a node with room for 256 MiB, whose starts can be held.
func newCancelBench(t *testing.T, k kind) *cancelBench {
	t.Helper()
	b := &cancelBench{kind: k, node: &node{}}
	dir := t.TempDir()
	flag := filepath.Join(dir, "hold")
	mark := func(t *testing.T, on bool) {
		t.Helper()
		var err error
		if on {
			err = os.WriteFile(flag, nil, 0o600)
		} else {
			err = os.Remove(flag)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if k.name == "containerd" {
		needContainerd(t)
		b.environment = runtimeBefore(t, dir, fmt.Sprintf(`case " $* " in *" start "*) while [ -e %s ]; do sleep 0.05; done;; esac`, flag))
		b.hold, b.held = mark, []string{"sh", "-c", obeys}
	} else {
		// The kernel opens a command that it is to execute.
		d := newDisk(t)
		script := filepath.Join(d.path, "held")
		writeProgram(t, script, "#!/bin/sh\n"+obeys+"\n")
		b.hold, b.held = func(_ *testing.T, on bool) { d.holdOpens(on) }, []string{script}
	}
	b.startWith(t, slices.Concat(k.flags, []string{"--memory-bytes", "268435456"})...)
	if k.name == "containerd" {
		b.importBusybox(t)
	}
	return b
}

// Cancel works at every moment, and is over when it says so: what was started is gone,
// what was not never is.
func TestCancelAtEveryMoment(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			b := newCancelBench(t, k)
			for _, m := range moments() {
				if m.only != "" && m.only != k.name {
					continue
				}
				for _, way := range []struct {
					name  string
					flags []string
					want  canceled
				}{{"", nil, m.plain}, {", by force", []string{"--force"}, m.forced}} {
					t.Run(m.name+way.name, func(t *testing.T) {
						id, let := m.reach(t, b)
						begun := time.Now()
						b.errand(t, slices.Concat([]string{"cancel"}, way.flags, []string{id})...).want(t, 0, id+"\n", "")
						if let != nil {
							let()
						}
						r := b.errand(t, "wait", "--timeout", "60s", id)
						left := leftOf(t, id)
						if r.code != 130 || len(left) > 0 {
							t.Errorf("wait gave %+v; still alive: %v\nnode: %s", r, left, b.log)
						}
						b.wantCanceled(t, id, begun, way.want)
					})
				}
			}
			b.refusals(t)
		})
	}
}

func (b *cancelBench) wantCanceled(t *testing.T, id string, begun time.Time, want canceled) {
	t.Helper()
	s := b.show(t, id)
	took := s.EndedAt.Sub(begun)
	if s.Status != "CANCELED" || s.Reason != "CANCELED" || want.after > 0 && took < want.after-100*time.Millisecond || took > want.within+busy {
		t.Errorf("%s after the cancel the run has ended as %+v; want %s to %s", took, s, want.after, want.within)
	}
	if want.loose {
		return
	}
	if (s.ExitCode == nil) != (len(want.code) == 0) || s.ExitCode != nil && !slices.Contains(want.code, *s.ExitCode) {
		t.Errorf("the code of %+v is not %v", s, want.code)
	}
	var sent []string
	if want.began {
		for _, one := range s.Attempts[len(s.Attempts)-1].Signals {
			sent = append(sent, one.Name)
		}
	}
	if !slices.Equal(sent, want.signals) {
		t.Errorf("the signals of %+v are not %v", s, want.signals)
	}
	if log := b.errand(t, "logs", "--attempt", fmt.Sprint(s.Attempt), id); (log.stdout == "began\n") != want.began {
		t.Errorf("it wrote %q, began: %v", log.stdout, want.began)
	}
}

// refusals: what has ended is left as it is, and who asks is told.
func (b *cancelBench) refusals(t *testing.T) {
	for _, test := range []struct{ name, script, status string }{
		{"one that has succeeded", "exit 0", "SUCCEEDED"}, {"one that has failed", "exit 3", "FAILED"},
	} {
		t.Run(test.name, func(t *testing.T) {
			id := b.kind.detach(t, b.node, nil, "sh", "-c", test.script)
			b.errand(t, "wait", id)
			before := b.errand(t, "show", id, "-o", "json").stdout
			for _, flags := range [][]string{nil, {"--force"}} {
				r := b.errand(t, slices.Concat([]string{"cancel"}, flags, []string{id})...)
				if r.code != 125 || !strings.Contains(r.stderr, "has ended already: it is "+test.status) {
					t.Errorf("cancel %v gave %+v", flags, r)
				}
			}
			if after := b.errand(t, "show", id, "-o", "json").stdout; after != before {
				t.Errorf("the record was %s and is %s", before, after)
			}
		})
	}
}
