package nodes

import (
	"github.com/errand-run/errand/actors"
)

// haunt lets every old Start come again, to the node that has forgotten all of
// them, and to its next life at every point of its start.
func (c *chaos) haunt() {
	again := func() {
		for _, start := range c.sent {
			c.step(actors.Received{Message: start})
		}
	}
	again()
	c.crash(0, false, false)
	for c.reached < PhaseAnnounced {
		again()
		switch {
		case len(c.inputs)+len(c.commits) > 0:
			in := c.inputs
			c.inputs = nil
			for _, input := range in {
				c.step(input)
			}
			for len(c.commits) > 0 {
				commit := c.commits[0]
				c.commits = c.commits[1:]
				c.step(actors.Committed{Tag: commit.Tag, Result: c.commit(commit.Txn)})
			}
		case len(c.calls) > 0:
			call := c.calls[0]
			c.calls = c.calls[1:]
			c.step(c.answer(call))
		case len(c.writes) > 0:
			c.step(JournalWritten{Tag: c.writeNext().Tag})
		case len(c.ops) > 0:
			c.settleOps()
		case len(c.watched) > 0:
			f := c.watched[0]
			c.watched = c.watched[1:]
			c.step(f)
		default:
			c.t.Fatalf("the node does not come up: phase %s", c.reached)
		}
	}
	again()
	c.settle()
	if !c.idle() {
		c.t.Fatalf("old Starts woke %d placements, %d boxes", len(c.machine.placements), len(c.boxes))
	}
}

func (c *chaos) idle() bool {
	for _, r := range c.runs {
		if r.placed {
			return false
		}
	}
	return c.reached == PhaseAnnounced && len(c.entries) == 0 && len(c.boxes) == 0 && len(c.machine.placements) == 0 &&
		len(c.writes) == 0 && c.machine.counts == [classCount]int64{} && c.machine.usage.count == int64(len(c.machine.reservations)) &&
		c.machine.starts.slots() == 0 && c.machine.starts.creating() == 0
}
