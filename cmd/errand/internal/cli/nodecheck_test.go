package cli

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/errand-run/errand/api/fakeapi"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// checkedNodes are what checks of nodes find, by the words of a test.
func checkedNodes() map[string]*errandv1.CheckNodeResponse {
	since := timestamppb.New(goldenNow.Add(-3 * time.Minute))
	left := []*errandv1.Leftover{
		{
			Kind: "cgroup", Name: "/sys/fs/cgroup/errand-1/e1", Sandbox: "e1", Since: since,
			Reason: "no run of this node accounts for it", Outlook: "the node removes it within 3 minutes",
		},
		{
			Kind: "task", Name: "e2", Sandbox: "e2", Run: "r.default.b", Attempt: 1, Removing: true,
			Reason: "its run has ended; it could not be removed", Outlook: "it is tried again in 5s",
		},
	}
	kept := []*errandv1.Leftover{{
		Kind: "directory", Name: "/data/sandboxes/e3", Sandbox: "e3", Run: "r.default.c", Attempt: 2, Since: since,
		Reason: "its sandbox is in quarantine", Outlook: "it goes with the sandbox",
	}}
	return map[string]*errandv1.CheckNodeResponse{
		"clean": {Id: "n1", Sandboxes: 2, Things: 40},
		"kept":  {Id: "n1", Sandboxes: 2, Things: 40, Kept: kept, KeptCount: 1},
		"left":  {Id: "n1", Sandboxes: 2, Things: 40, Left: left, LeftCount: 3, Kept: kept, KeptCount: 1},
		"unseen": {Id: "n1", Sandboxes: 2, Things: 40, Unseen: []string{
			"containers, tasks, snapshots, leases and ingests: containerd at /run/containerd.sock does not answer: connection refused",
		}},
		"left-unseen": {Id: "n1", Left: left[:1], LeftCount: 1, Things: 1, Unseen: []string{"cgroups: permission denied"}},
	}
}

func TestNodeCheckSaysWhatIsLeftAndTellsItByItsExitCode(t *testing.T) {
	codes := map[string]int{"clean": 0, "kept": 0, "left": ExitLeft, "unseen": ExitErrand, "left-unseen": ExitLeft}
	for name, found := range checkedNodes() {
		s := startFake(t, func(s *fakeapi.Server) { s.NodeCheck = found })
		i := newInvocation(t, s.URL())
		i.now = goldenNow
		for _, format := range []string{"table", "json", "yaml"} {
			t.Run(name+" "+format, func(t *testing.T) {
				got := i.run("node", "check", "n1", "-o", format)
				if got.code != codes[name] {
					t.Fatalf("%+v", got)
				}
				golden(t, "check-"+name+"."+format, got.stdout)
			})
		}
	}
}

func TestNodeCheckIsOfTheNodeThatAnswers(t *testing.T) {
	s := startFake(t, func(s *fakeapi.Server) { s.NodeCheck = checkedNodes()["clean"] })
	i := newInvocation(t, s.URL())
	if got := i.run("node", "check"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	i.run("node", "check", "n2").wantError(t, ExitErrand, "n2")
	i.run("node", "check", "n1", "n2").wantError(t, ExitUsage, "one NODE")
}
