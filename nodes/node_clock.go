package nodes

import (
	"sync/atomic"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/nodes/pace"
)

// comparedClock is the clock of a node whose wall is also held against those of the
// others: one that has been wrong for so long that it keeps pace again is still not
// healthy (protocol.md section 7). Its methods may be called from any goroutine.
type comparedClock struct {
	actors.Clock
	peers actors.Peers
	// lead is how far ahead the wall was at the last reading, 0 within the bound.
	lead atomic.Int64
}

// Now reads all clocks, and compares the wall.
func (c *comparedClock) Now() actors.Instant {
	now := c.Clock.Now()
	lead := c.peers.Lead(now)
	if lead.Abs() <= pace.LeadMax {
		lead = 0
	}
	now.WallHealthy = now.WallHealthy && lead == 0
	c.lead.Store(int64(lead))
	return now
}

// astray is by how much the wall is ahead of where it may be, 0 for a good one or one
// that nobody compares; negative when it is behind.
func (c *comparedClock) astray() time.Duration {
	if c == nil {
		return 0
	}
	return time.Duration(c.lead.Load())
}

func astrayText(lead time.Duration) string {
	where := " ahead of"
	if lead < 0 {
		where = " behind"
	}
	return "the wall clock is " + lead.Abs().Round(time.Second).String() + where + " those of the other nodes: nothing is ended by it"
}
