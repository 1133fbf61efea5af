package check

import (
	"fmt"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/history"
)

// g2OneStart: the command of one attempt is started at most once, on at most one
// machine, and no attempt of which a command was started is placed again as one that
// never was.
type g2OneStart struct{}

func (g2OneStart) Guarantee() Guarantee { return G2 }

func (g2OneStart) Observe(l *Ledger, e history.Event, report func(Finding)) {
	switch e.Kind {
	case history.KindCommand:
		if c, ok := e.Detail.(history.Command); !ok || !c.Started {
			return
		}
		r := l.Run(e.Run)
		for _, earlier := range r.Commands[:len(r.Commands)-1] {
			if earlier.Attempt == e.Attempt {
				report(Finding{
					Run: e.Run, Node: e.Node, Outside: l.Undone(earlier),
					Text: fmt.Sprintf("started again, as placement %d, after %v", e.Placement, earlier),
				})
			}
		}
	case history.KindCommit:
		for _, r := range l.Changed() {
			if c := voided(r); c != nil {
				report(Finding{Run: r.ID, Node: c.Node, Outside: l.Undone(c), Text: fmt.Sprintf("%v was recorded as never started", c)})
			}
		}
	default:
	}
}

// voided returns the command of the placement that a commit has given up within its
// attempt, which says that it never started.
func voided(r *Run) *Command {
	p := r.Before.GetPlacement()
	if p == nil || r.Record == nil || r.Terminal() || r.Record.GetPlacement() != nil || r.Record.GetAttempt() != r.Before.GetAttempt() {
		return nil
	}
	return r.CommandOf(r.Before.GetAttempt(), p.GetNumber())
}

// g3NoTwoAtOnce: no two commands of a run run at one time; none is started for a
// placement that was given up; none still runs when its placement is given up for
// another.
type g3NoTwoAtOnce struct{}

func (g3NoTwoAtOnce) Guarantee() Guarantee { return G3 }

func (g g3NoTwoAtOnce) Observe(l *Ledger, e history.Event, report func(Finding)) {
	switch e.Kind {
	case history.KindCommand:
		if c, ok := e.Detail.(history.Command); ok && c.Started {
			g.started(l, e, report)
		}
	case history.KindCommit:
		for _, r := range l.Changed() {
			p := r.Before.GetPlacement()
			if p == nil || r.Record == nil || r.Terminal() || r.Current(r.Before.GetAttempt(), p.GetNumber()) {
				continue
			}
			if c := r.CommandOf(r.Before.GetAttempt(), p.GetNumber()); c != nil && c.Alive {
				report(Finding{Run: r.ID, Node: c.Node, Text: fmt.Sprintf("%v was given up while it ran", c), Outside: l.Outside(c.Node, r.LeftBy)})
			}
		}
	default:
	}
}

func (g3NoTwoAtOnce) started(l *Ledger, e history.Event, report func(Finding)) {
	r := l.Run(e.Run)
	for _, other := range r.Commands[:len(r.Commands)-1] {
		if other.Alive {
			report(Finding{
				Run: e.Run, Node: e.Node, Outside: l.Outside(e.Node, other.Node, r.LeftBy),
				Text: fmt.Sprintf("attempt %d placement %d was started while %v ran", e.Attempt, e.Placement, other),
			})
		}
	}
	if r.Terminal() || r.Current(e.Attempt, e.Placement) || l.fading() {
		return // a start after the end is G4's
	}
	report(Finding{
		Run: e.Run, Node: e.Node, Outside: l.Outside(e.Node, r.LeftBy),
		Text: fmt.Sprintf("attempt %d placement %d was started, which the record does not hold any more", e.Attempt, e.Placement),
	})
}

// g4TerminalMeansGone: when a run reads terminal no process of it is left anywhere,
// none comes after, and what it held went with the same transaction.
type g4TerminalMeansGone struct{}

func (g4TerminalMeansGone) Guarantee() Guarantee { return G4 }

func (g4TerminalMeansGone) Observe(l *Ledger, e history.Event, report func(Finding)) {
	switch e.Kind {
	case history.KindCommand:
		c, ok := e.Detail.(history.Command)
		if r := l.Run(e.Run); ok && c.Started && r.Terminal() && !l.excused(r, e.Attempt, e.Placement, e.Node) {
			report(Finding{Run: e.Run, Node: e.Node, Text: "a command was started after the run had ended", Outside: l.Outside(e.Node, r.LeftBy)})
		}
	case history.KindCommit:
		for _, r := range l.Changed() {
			if r.Terminal() {
				ends(l, r, report)
			}
		}
		returned(l, report)
	default:
	}
}

func ends(l *Ledger, r *Run, report func(Finding)) {
	for _, c := range r.Alive() {
		if l.excused(r, c.Attempt, c.Placement, c.Node) {
			continue
		}
		report(Finding{Run: r.ID, Node: c.Node, Text: fmt.Sprintf("the run reads terminal and %v still runs", c), Outside: l.Outside(c.Node, r.LeftBy)})
	}
	if r.Record.GetStatus() == recordv1.Status_STATUS_SKIPPED {
		return
	}
	if r.Live {
		report(Finding{Run: r.ID, Text: "the run reads terminal and its live key is there"})
	}
	for _, a := range r.Assignments {
		report(Finding{Run: r.ID, Node: a.Node, Text: "the run reads terminal and is assigned to " + a.Node})
	}
	if r.Record.GetPlacement() != nil {
		report(Finding{Run: r.ID, Text: "the run reads terminal and has a placement"})
	}
}
