package containerd

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// wantTaken fails unless a Create was refused, for now, because the id is another's.
func wantTaken(t *testing.T, err error, owner string) {
	t.Helper()
	var refused *sandbox.StartError
	if !errors.As(err, &refused) || refused.Permanent || refused.Reason != recordv1.Reason_REASON_START_ERROR || !strings.Contains(refused.Message, owner) {
		t.Errorf("create: %v, want that the id is that of %s", err, owner)
	}
}

// otherNode is another node on the containerd of a bench.
func (b *bench) otherNode() *bench {
	other := &bench{t: b.t, dir: b.t.TempDir(), node: fmt.Sprintf("%08x-other", rand.Uint32())}
	other.open(b.d.config.Address)
	return other
}

// Two nodes that share a containerd come to the same id by the same idempotency key. What
// one has of it is not the other's to remove.
func TestASandboxOfAnotherNodeWithTheSameIDIsLeftAlone(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	spec := b.spec("sleep", "3600")
	b.start(spec)
	other := b.otherNode()
	defer func() { _ = other.d.Close() }()
	theirs := spec
	theirs.NodeUUID, theirs.LogPath = other.node, filepath.Join(other.dir, "logs", "x")
	wantTaken(t, other.d.Create(within(t), theirs), "errand-"+testNode[:8])
	// Before the runtime knows of it, and after a reboot, only containerd does.
	state := filepath.Join(runcRoot, testNamespace, spec.ID, "state.json")
	if err := os.Rename(state, state+".away"); err != nil {
		t.Fatal(err)
	}
	wantTaken(t, other.d.Create(within(t), theirs), testNode)
	for range 2 {
		if _, err := other.d.Kill(within(t), spec.ID); err != nil {
			t.Error(err)
		}
		if err := other.d.Remove(within(t), spec.ID); err != nil {
			t.Error(err)
		}
	}
	if err := os.Rename(state+".away", state); err != nil {
		t.Fatal(err)
	}
	if err := other.d.Remove(within(t), spec.ID); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(other.d.config.Dir); err != nil || len(left) > 0 {
		t.Errorf("the other node has kept %v, %v", left, err)
	}
	infos, err := b.d.List(within(t))
	if err != nil || len(infos) != 1 || infos[0].State != sandbox.StateRunning || infos[0].Trace {
		t.Fatalf("the node's own sandbox is listed as %+v, %v", infos, err)
	}
	b.end(spec)
	if err := other.d.Create(within(t), theirs); err != nil {
		t.Errorf("once it is gone: %v", err)
	}
	if err := other.d.Remove(within(t), spec.ID); err != nil {
		t.Error(err)
	}
}
