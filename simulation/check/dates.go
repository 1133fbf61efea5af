package check

import (
	"fmt"
	"time"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/history"
)

// dateSlack is how far a recorded start or end may be from the true one where no clock
// is or was wrong.
const dateSlack = 2 * time.Second

// g7Dates: a command that was seen to end is dated as it was, not as its run's actor
// heard of it. It is judged where no clock is or was wrong.
type g7Dates struct{ wrong bool }

func (*g7Dates) Guarantee() Guarantee { return G7 }

func (g *g7Dates) Observe(l *Ledger, e history.Event, report func(Finding)) {
	switch e.Kind {
	case history.KindFault, history.KindMachine:
		f, ok := e.Detail.(history.Fault)
		g.wrong = g.wrong || ok && f.Name == "wall_step" || driftsApart(e)
	case history.KindCommit:
		if g.wrong || l.config.Epoch == 0 {
			return
		}
		for _, r := range l.Changed() {
			if r.Record != nil && r.Rewritten {
				g.judge(l, r, report)
			}
		}
	default:
	}
}

func (*g7Dates) judge(l *Ledger, r *Run, report func(Finding)) {
	last := lastAttempt(r.Record)
	running := r.Record.GetStatus() == recordv1.Status_STATUS_RUNNING
	if last == nil || !running && last.ExitCode == nil {
		return
	}
	c := r.CommandOf(last.GetNumber(), last.GetPlacement())
	if c == nil || !l.InSight(c) || l.machine(c.Node).launchedAt > c.Started {
		return // what was found by a daemon that came up later is dated by when it was found
	}
	if off := l.off(last.GetStartedAt(), c.Started); off > dateSlack {
		report(Finding{Run: r.ID, Node: c.Node, Text: fmt.Sprintf("%v is said to have started %v off", c, off)})
	}
}

// driftsApart tells whether an event leaves a machine with clocks that are off: its
// oscillator is wrong, or it stands still without counting. The words are those of
// package machine.
func driftsApart(e history.Event) bool {
	f, ok := e.Detail.(history.Fault)
	return ok && (f.Name == "drift" || f.Name == "pause that boottime does not count") || e.Kind == history.KindMachine && e.Text == "frozen"
}

// off is how far a recorded time is from a true one.
func (l *Ledger) off(recorded int64, at time.Duration) time.Duration {
	return (milli(recorded-l.config.Epoch) - at).Abs()
}
