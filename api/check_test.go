package api_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/api"
	"github.com/errand-run/errand/api/codes"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// stock is an inventory: what the first look finds, and what every later one does.
type stock struct {
	first, later []sandbox.Thing
	unseen       []string
	looks        atomic.Int32
}

func (s *stock) Take(context.Context) ([]sandbox.Thing, []string) {
	if s.looks.Add(1) == 1 {
		return s.first, s.unseen
	}
	return s.later, s.unseen
}

func box(kind sandbox.Kind, id string) sandbox.Thing {
	return sandbox.Thing{Kind: kind, Name: "of " + id, Sandbox: id, Since: time.UnixMilli(1000)}
}

var checkedAt = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// checkRig is a node that accounts for some sandboxes. Its clock makes great steps: what
// stays has been there long enough at the second look.
func checkRig(t *testing.T, s *stock) *rig {
	t.Helper()
	known := map[string]*actorv1.SandboxAccount{
		"needed":      {Sandbox: "needed", Run: "r.a.needed", Attempt: 1, Use: actorv1.SandboxUse_SANDBOX_USE_RUN},
		"ending":      {Sandbox: "ending", Run: "r.a.ending", Attempt: 2, Use: actorv1.SandboxUse_SANDBOX_USE_ENDED},
		"stuck":       {Sandbox: "stuck", Run: "r.a.stuck", Attempt: 3, Use: actorv1.SandboxUse_SANDBOX_USE_ENDED, Tries: 7, Since: 5000, LastError: "the shim hangs", Next: checkedAt.Add(time.Minute).UnixMilli()},
		"removed":     {Sandbox: "removed", Run: "r.a.removed", Attempt: 1, Use: actorv1.SandboxUse_SANDBOX_USE_REMOVED},
		"quarantined": {Sandbox: "quarantined", Run: "r.a.strange", Attempt: 1, Use: actorv1.SandboxUse_SANDBOX_USE_QUARANTINED},
	}
	var steps atomic.Int64
	r := newRig(t, func(config *api.Config) {
		config.Node, config.Inventory = "n1", s
		config.Now = func() time.Time { return checkedAt.Add(time.Duration(steps.Add(1)) * 2 * time.Second) }
	})
	r.router.ask = func(message proto.Message) (proto.Message, error) {
		told := &actorv1.Described{Node: "n1"}
		for _, id := range message.(*actorv1.Describe).GetSandboxes() {
			if account := known[id]; account != nil {
				told.Accounts = append(told.Accounts, account)
			}
		}
		return told, nil
	}
	return r
}

func TestCheckTellsWhatNoRunAccountsFor(t *testing.T) {
	for _, test := range []struct {
		name          string
		thing         sandbox.Thing
		passes        bool
		left, kept    bool
		removing      bool
		run, why, how string
	}{
		{name: "of a run that goes on", thing: box(sandbox.KindTask, "needed")},
		{name: "of one that ends meanwhile", thing: box(sandbox.KindTask, "ending"), passes: true},
		{name: "of one that is being removed for long", thing: box(sandbox.KindTask, "ending"), left: true, removing: true, run: "r.a.ending", why: "is being removed", how: "goes on"},
		{name: "of one that can not be removed", thing: box(sandbox.KindTask, "stuck"), left: true, removing: true, run: "r.a.stuck", why: "1970-01-01T00:00:05Z: the shim hangs (tried 7 times)", how: "tried again in"},
		{name: "left when all else was removed", thing: box(sandbox.KindCgroup, "removed"), left: true, run: "r.a.removed", why: "but not this", how: "within 3 minutes"},
		{name: "of nobody", thing: box(sandbox.KindMount, "nobody"), left: true, why: "no run", how: "within 3 minutes"},
		{name: "of nobody, for a moment", thing: box(sandbox.KindMount, "nobody"), passes: true},
		{name: "without a name", thing: sandbox.Thing{Kind: sandbox.KindLease, Name: "x"}, left: true, why: "nothing tells", how: "by hand"},
		{name: "a containerd without its files", thing: sandbox.Thing{Kind: sandbox.KindContainerd, Name: "17"}, left: true, why: "files are not there", how: "next start"},
		{name: "a file that got no name", thing: sandbox.Thing{Kind: sandbox.KindTemporary, Name: "/d/x.new"}, left: true, why: "broken off", how: "replaces it"},
		{name: "in quarantine", thing: box(sandbox.KindDirectory, "quarantined"), kept: true, run: "r.a.strange", why: "in quarantine", how: "errand node show n1"},
		{name: "of an image", thing: sandbox.Thing{Kind: sandbox.KindLease, Name: "p", Keeper: "an image is fetched", Until: checkedAt.Add(time.Hour)}, kept: true, why: "an image", how: "containerd removes it in 1h0m"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := &stock{first: []sandbox.Thing{test.thing}, later: []sandbox.Thing{test.thing, box(sandbox.KindProcess, "it came later")}}
			if test.passes {
				s.later = nil
			}
			r := checkRig(t, s)
			got, err := r.nodes.Check(r.ctx, &errandv1.CheckNodeRequest{})
			if err != nil || got.GetId() != "n1" || got.GetLeftCount() != int64(len(got.GetLeft())) || got.GetKeptCount() != int64(len(got.GetKept())) {
				t.Fatalf("%v, %v", got, err)
			}
			told := slices.Concat(got.GetLeft(), got.GetKept())
			if (len(got.GetLeft()) == 1) != test.left || (len(got.GetKept()) == 1) != test.kept || len(told) > 1 {
				t.Fatalf("left %v, kept %v", got.GetLeft(), got.GetKept())
			}
			if len(told) == 0 {
				return
			}
			one := told[0]
			if one.GetKind() != string(test.thing.Kind) || one.GetName() != test.thing.Name || one.GetRun() != test.run || one.GetRemoving() != test.removing ||
				!strings.Contains(one.GetReason(), test.why) || !strings.Contains(one.GetOutlook(), test.how) || (one.GetSince() == nil) != test.thing.Since.IsZero() {
				t.Errorf("%v", one)
			}
		})
	}
}

func TestCheckSaysWhatItCouldNotLookAt(t *testing.T) {
	r := checkRig(t, &stock{first: []sandbox.Thing{box(sandbox.KindTask, "needed")}, unseen: []string{"containerd does not answer"}})
	got, err := r.nodes.Check(r.ctx, &errandv1.CheckNodeRequest{Id: "n1"})
	if err != nil || !slices.Equal(got.GetUnseen(), []string{"containerd does not answer"}) || got.GetSandboxes() != 1 || got.GetThings() != 1 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestCheckBoundsWhatItTells(t *testing.T) {
	var many []sandbox.Thing
	for i := range 2500 {
		many = append(many, sandbox.Thing{Kind: sandbox.KindSocket, Name: string(rune('a'+i%26)) + strings.Repeat("x", i/26)})
	}
	r := checkRig(t, &stock{first: many, later: many})
	got, err := r.nodes.Check(r.ctx, &errandv1.CheckNodeRequest{})
	if err != nil || got.GetLeftCount() != 2500 || len(got.GetLeft()) != 1000 {
		t.Errorf("%d of %d, %v", len(got.GetLeft()), got.GetLeftCount(), err)
	}
}

func TestCheckThatCanNotBeMade(t *testing.T) {
	r := checkRig(t, &stock{first: []sandbox.Thing{box(sandbox.KindTask, "needed")}})
	_, err := r.nodes.Check(r.ctx, &errandv1.CheckNodeRequest{Id: "n2"})
	wantCode(t, err, codes.NodeNotFound)
	_, err = r.nodes.Check(r.ctx, &errandv1.CheckNodeRequest{Id: "../n1"})
	wantCode(t, err, codes.InvalidField)
	r.router.ask = func(proto.Message) (proto.Message, error) { return nil, errors.New("nobody is there") }
	_, err = r.nodes.Check(r.ctx, &errandv1.CheckNodeRequest{})
	wantCode(t, err, codes.Deadline)
	_, err = newRig(t).nodes.Check(r.ctx, &errandv1.CheckNodeRequest{})
	wantCode(t, err, codes.NotSupported)
}
