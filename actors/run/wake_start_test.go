package run

import (
	"testing"
	"time"

	"github.com/errand-run/errand/actors"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

func TestStartIsDatedByTheNodeOnlyWhereThatCanBe(t *testing.T) {
	const placed, present = int64(900_000_100_000), int64(900_000_160_000)
	day := 24 * time.Hour.Milliseconds()
	for _, test := range []struct {
		name      string
		says      int64
		unhealthy bool
		want      int64
	}{
		{"between placement and now", placed + 5000, false, placed + 5000},
		{"at the placement", placed, false, placed},
		{"a clock that was set back", placed - day, false, present},
		{"a clock that is ahead", present + day, false, present},
		{"a clock that is a minute ahead, or ours behind", present + 60_000, false, present + 60_000},
		{"nothing said", 0, false, present},
		{"a clock that was set back, and ours can not be trusted", placed - day, true, placed},
		{"a time after the placement, and ours can not be trusted", placed + 5000, true, placed + 5000},
		{"nothing said, and ours can not be trusted", 0, true, present},
	} {
		t.Run(test.name, func(t *testing.T) {
			run := &recordv1.Run{Placement: &recordv1.Placement{PlacedAt: placed}}
			now := actors.Instant{Wall: time.UnixMilli(present), WallHealthy: !test.unhealthy}
			if got := startOf(now, run, test.says); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}
