package nodes

import (
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/nodes/pace"
)

type stoppedClock struct {
	actors.Clock
	healthy bool
}

func (c stoppedClock) Now() actors.Instant { return actors.Instant{WallHealthy: c.healthy} }

type leads time.Duration

func (l leads) Lead(actors.Instant) time.Duration { return time.Duration(l) }

func TestWallThatIsNotThatOfTheOthersIsNotHealthy(t *testing.T) {
	for _, test := range []struct {
		name    string
		lead    time.Duration
		paces   bool
		healthy bool
		trouble string
	}{
		{"as the others", 0, true, true, ""},
		{"within the bound", -pace.LeadMax, true, true, ""},
		{"ahead", time.Hour, true, false, "1h0m0s ahead of"},
		{"behind", -24 * time.Hour, true, false, "24h0m0s behind"},
		{"as the others and stepped just now", 0, false, false, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			node := &Node{clock: &comparedClock{Clock: stoppedClock{healthy: test.paces}, peers: leads(test.lead)}}
			node.status.Store(&Status{})
			if got := node.clock.Now().WallHealthy; got != test.healthy {
				t.Errorf("healthy: %v, want %v", got, test.healthy)
			}
			if got := node.Status().Trouble; !strings.Contains(got, test.trouble) || (got == "") != (test.trouble == "") {
				t.Errorf("trouble %q, want %q", got, test.trouble)
			}
			node.status.Store(&Status{Trouble: "more than that"})
			if got := node.Status().Trouble; got != "more than that" {
				t.Errorf("trouble %q hides what the node said of itself", got)
			}
		})
	}
}
