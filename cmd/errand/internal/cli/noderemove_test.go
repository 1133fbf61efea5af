package cli

import (
	"strings"
	"testing"

	"github.com/errand-run/errand/api/fakeapi"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

func removalServer(t *testing.T) *fakeapi.Server {
	t.Helper()
	return startFake(t, func(s *fakeapi.Server) {
		s.Nodes = []*errandv1.Node{{Id: "n1"}, {Id: "n2", Away: true}}
		s.Removals = map[string]*errandv1.RemoveNodeResponse{
			"n2": {Waiting: []string{"r.default.a", "r.default.b"}, WaitingCount: 2, OthersCount: 3},
			"n3": {},
			"n4": {RemovedAt: before(0), RemovedBy: "ann@build-7", Waiting: []string{"r.default.a", "r.default.b"}, WaitingCount: 2, OthersCount: 3},
			"n5": {RemovedAt: before(0), RemovedBy: "ann@build-7"},
		}
	})
}

func TestNodeIsRemovedOnlyByTheWordThatItIsDead(t *testing.T) {
	s := removalServer(t)
	i := newInvocation(t, s.URL())
	i.run("node", "rm", "n2").wantError(t, ExitUsage, "nothing was done", "2 runs that wait for the node", "r.default.a, r.default.b", "3 more", "errand node rm n2 --i-know-it-is-dead")
	i.run("node", "rm", "n3").wantError(t, ExitUsage, "nothing was done", "No run waits for the node", "--i-know-it-is-dead")
	if s.Removals["n2"].GetRemovedAt() != nil {
		t.Fatal("it is removed without the word")
	}
	i.run("node", "rm", "n1", "--i-know-it-is-dead").wantError(t, ExitErrand, "has a session")
	i.run("node", "rm", "n9", "--i-know-it-is-dead").wantError(t, ExitErrand, "ever registered")
	i.run("node", "rm", "--i-know-it-is-dead").wantError(t, ExitUsage, "one NODE")
	for range 2 {
		if got := i.run("node", "rm", "n2", "--i-know-it-is-dead"); got.code != 0 || !strings.Contains(got.stdout, "r.default.a\nr.default.b\n") || !strings.Contains(got.stderr, "3 more") {
			t.Errorf("%+v", got)
		}
	}
	if s.Removals["n2"].GetRemovedBy() == "" {
		t.Error("nobody has said it")
	}
}

func TestRemovedNodesAreRendered(t *testing.T) {
	i := newInvocation(t, removalServer(t).URL())
	for name, node := range map[string]string{"removed": "n4", "removed-nothing": "n5"} {
		for _, format := range []string{"table", "json", "yaml"} {
			t.Run(name+" "+format, func(t *testing.T) {
				got := i.run("node", "rm", node, "--i-know-it-is-dead", "-o", format)
				if got.code != 0 {
					t.Fatalf("%+v", got)
				}
				golden(t, name+"."+format, got.stdout)
			})
		}
	}
}
