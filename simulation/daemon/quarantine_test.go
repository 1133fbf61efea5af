package daemon_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/nodes/journal"
	"github.com/errand-run/errand/nodes/logs"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/containerd"
	"github.com/errand-run/errand/nodes/sandbox/containerd/private"
	"github.com/errand-run/errand/nodes/sandbox/guest"
	"github.com/errand-run/errand/nodes/sandbox/process"
	"github.com/errand-run/errand/simulation/daemon/leftover"
)

// behind opens the driver of a node that is down, lets somebody work with it behind the
// node's back, and lets go of it.
func (n *node) behind(t *testing.T, k kind, work func(context.Context, sandbox.Driver, string)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	text, err := os.ReadFile(filepath.Join(n.data, "node.uuid"))
	if err != nil {
		t.Fatal(err)
	}
	uuid := strings.TrimSpace(string(text))
	helper, err := guest.InstallFile(filepath.Join(n.data, "bin"), filepath.Join(binaries, "sandbox-init"))
	if err != nil {
		t.Fatal(err)
	}
	var driver sandbox.Driver
	if k.name == process.Name {
		driver, err = process.New(process.Config{Dir: filepath.Join(n.data, k.name), NodeUUID: uuid, Helper: helper})
	} else {
		runtime, failed := private.Start(ctx, private.Config{Dir: filepath.Join(n.data, "containerd")})
		if failed != nil {
			t.Fatal(failed)
		}
		defer func() {
			if err := runtime.Leave(context.WithoutCancel(ctx)); err != nil {
				t.Error(err)
			}
		}()
		driver, err = containerd.New(ctx, containerd.Config{
			Address: runtime.Address(), NodeUUID: uuid, Dir: filepath.Join(n.data, k.name, "sandboxes"), Init: helper,
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := driver.Close(); err != nil {
			t.Error(err)
		}
	}()
	work(ctx, driver, uuid)
}

// sandboxesOf lists what the driver of a node that is down has.
func (n *node) sandboxesOf(t *testing.T, k kind) map[string]sandbox.Info {
	t.Helper()
	found := map[string]sandbox.Info{}
	n.behind(t, k, func(ctx context.Context, driver sandbox.Driver, _ string) {
		infos, err := driver.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, info := range infos {
			found[info.ID] = info
		}
	})
	return found
}

// plant starts a sandbox of a name, by whomever.
func plant(ctx context.Context, t *testing.T, driver sandbox.Driver, uuid string, info sandbox.Info) {
	t.Helper()
	root := t.TempDir()
	spec := sandbox.Spec{
		ID: info.ID, Run: info.Run, App: "default", Attempt: 1, Placement: 1, NodeUUID: uuid, StartToken: info.StartToken, SpecHash: info.SpecHash,
		LogPath: logs.Path(root, info.Run, 1),
		Spec: &recordv1.Spec{
			Driver: driver.Name(), Command: []string{"/bin/sleep", "600"}, Env: []string{sandbox.EnvRunID + "=" + info.Run},
		},
	}
	if driver.Name() != process.Name {
		spec.Spec.Image = "docker.io/library/busybox:latest"
	}
	if err := os.MkdirAll(filepath.Dir(spec.LogPath), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := driver.Create(ctx, spec); err != nil {
		t.Fatal(err)
	}
	if _, err := driver.Start(ctx, spec.ID); err != nil {
		t.Fatal(err)
	}
}

// ageQuarantine has the journal of a node that is down say that what is in quarantine was
// found a day earlier.
func (n *node) ageQuarantine(t *testing.T) {
	t.Helper()
	j, err := journal.Open(n.data, "")
	if err != nil {
		t.Fatal(err)
	}
	loaded := make(chan *recordv1.JournalMeta, 1)
	j.Load(func(content nodes.JournalContent, err error) {
		if err != nil {
			t.Error(err)
		}
		loaded <- proto.CloneOf(content.Meta)
	})
	meta := <-loaded
	for _, q := range meta.GetQuarantined() {
		q.Since -= nodes.QuarantineHold.Milliseconds()
	}
	written := make(chan error, 1)
	j.Write(nodes.JournalChange{Meta: meta}, func(err error) { written <- err })
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

// kept is what the tests read of `errand node show -o json`.
type kept struct {
	Sandbox string `json:"sandbox"`
	Run     string `json:"run"`
	Reason  string `json:"reason"`
	Running bool   `json:"running"`
}

func (n *node) quarantine(t *testing.T) map[string]kept {
	t.Helper()
	var all []struct {
		ID string `json:"id"`
	}
	var shown struct {
		Quarantined []kept `json:"quarantined"`
	}
	if err := json.Unmarshal([]byte(n.errand(t, "node", "ls", "-o", "json").stdout), &all); err != nil || len(all) != 1 {
		t.Fatalf("nodes %v, %v", all, err)
	}
	r := n.errand(t, "node", "show", all[0].ID, "-o", "json")
	if err := json.Unmarshal([]byte(r.stdout), &shown); err != nil {
		t.Fatalf("errand node show: %+v, %v", r, err)
	}
	found := map[string]kept{}
	for _, q := range shown.Quarantined {
		found[q.Sandbox] = q
	}
	return found
}

// awaitQuarantine returns when a node keeps exactly these, all of them stopped.
func (n *node) awaitQuarantine(t *testing.T, want ...string) map[string]kept {
	t.Helper()
	slices.Sort(want)
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) { // nobody is told
		found := n.quarantine(t)
		var stopped []string
		for id, q := range found {
			if !q.Running {
				stopped = append(stopped, id)
			}
		}
		slices.Sort(stopped)
		if slices.Equal(stopped, want) && len(found) == len(want) {
			return found
		}
		if time.Now().After(deadline) {
			t.Fatalf("quarantine %+v, want %v\nnode: %s", found, want, n.log)
		}
	}
}

// eventTexts are the words of a run's events of a kind.
func (n *node) eventTexts(t *testing.T, id, kind string) (texts []string) {
	t.Helper()
	var history struct {
		Events []struct{ Kind, Message string } `json:"events"`
	}
	r := n.errand(t, "events", id, "-o", "json")
	if err := json.Unmarshal([]byte(r.stdout), &history); err != nil {
		t.Fatalf("errand events: %+v, %v", r, err)
	}
	for _, e := range history.Events {
		if e.Kind == kind {
			texts = append(texts, e.Message)
		}
	}
	return texts
}

// What the node finds at its start and its journal does not account for is stopped and
// kept, shown and said, never adopted, and goes when its day is over; what the journal
// accounts for and nobody has is said to be lost.
func TestWhatTheJournalDoesNotAccountFor(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			n := k.start(t)
			gone, token, spec := k.detach(t, n, nil, "sleep", "600"), k.detach(t, n, nil, "sleep", "600"), k.detach(t, n, nil, "sleep", "600")
			fine := k.detach(t, n, nil, "sleep", "600")
			for _, id := range []string{gone, token, spec, fine} {
				n.awaitRunning(t.Context(), t, id)
			}
			n.crash(t)
			const stray = "r.default.aaaaaaaaaaaaaaaaaaaaaaaaaa"
			n.behind(t, k, func(ctx context.Context, driver sandbox.Driver, uuid string) {
				infos, err := driver.List(ctx)
				if err != nil || len(infos) != 4 {
					t.Fatalf("sandboxes %+v, %v", infos, err)
				}
				for _, info := range infos {
					if info.Run == fine {
						continue
					}
					if err := driver.Remove(ctx, info.ID); err != nil {
						t.Fatal(err)
					}
					switch info.Run {
					case token:
						info.StartToken = []byte("of somebody else")
					case spec:
						info.SpecHash = make([]byte, sha256.Size)
					default:
						continue
					}
					plant(ctx, t, driver, uuid, info)
				}
				plant(ctx, t, driver, uuid, sandbox.Info{
					ID: records.SandboxID(stray, 1, 1), Run: stray, StartToken: []byte("of nobody"), SpecHash: make([]byte, sha256.Size),
				})
			})
			n.start(t)
			reasons := map[string]string{token: "its start token is not that of the journal", spec: "it was not made of what its run asks for", stray: "the journal does not know it"}
			var ids []string
			for run := range reasons {
				ids = append(ids, records.SandboxID(run, 1, 1))
			}
			found := n.awaitQuarantine(t, ids...)
			for run, reason := range reasons {
				if q := found[records.SandboxID(run, 1, 1)]; q.Run != run || !strings.HasPrefix(q.Reason, reason) {
					t.Errorf("quarantine has %+v, want %s because %q", q, run, reason)
				}
				if left := leftOf(t, run); len(left) > 0 {
					t.Errorf("in quarantine and alive: %v", left)
				}
			}
			for _, id := range []string{gone, token, spec} {
				n.errand(t, "wait", "--timeout", "100s", id)
				s := n.show(t, id)
				if s.Status != "FAILED" || s.Reason != "SANDBOX_LOST" || s.ExitCode != nil || len(s.Attempts) != 1 {
					t.Errorf("the run is %+v", s)
				}
				said := n.eventTexts(t, id, "LOST")
				if len(said) != 1 || !strings.Contains(said[0], "its sandbox is gone") && !strings.Contains(said[0], reasons[id]) {
					t.Errorf("the run says that it was lost so: %q", said)
				}
			}
			for _, id := range []string{token, spec} {
				if said := n.eventTexts(t, id, "QUARANTINED"); len(said) != 1 || !strings.Contains(said[0], reasons[id]) {
					t.Errorf("the run says of its quarantine: %q", said)
				}
			}
			if s := n.show(t, fine); s.Status != "RUNNING" || len(processesOf(t, fine)) == 0 {
				t.Errorf("the run that all agree about is %+v", s)
			}
			for _, said := range []string{"sandbox that the journal knows is not there", "sandbox is not the journal's"} {
				if !strings.Contains(n.log.String(), said) {
					t.Errorf("the log does not say %q:\n%s", said, n.log)
				}
			}

			// Another life finds them as they were left, and what they did not fit too.
			n.restart(t)
			for id, q := range n.awaitQuarantine(t, ids...) {
				if !strings.HasPrefix(q.Reason, reasons[q.Run]) {
					t.Errorf("after a restart quarantine has %s because %q", id, q.Reason)
				}
			}
			n.crash(t)
			there := n.sandboxesOf(t, k)
			for _, id := range ids {
				if info, ok := there[id]; !ok || info.State != sandbox.StateExited {
					t.Errorf("sandbox %s is %+v, %t", id, info, ok)
				}
			}
			n.ageQuarantine(t)
			n.start(t)
			n.awaitQuarantine(t)
			n.errand(t, "cancel", "--force", fine)
			n.errand(t, "wait", fine)
			scope := leftover.Node{Data: n.data, Sandboxes: ids}
			settle, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			if left, err := scope.Settle(settle); err != nil || len(left) > 0 {
				t.Errorf("left over: %s, %v\nnode: %s", strings.Join(left, "\n"), err, n.log)
			}
		})
	}
}
