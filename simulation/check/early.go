package check

import (
	"fmt"
	"time"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/history"
)

// wallTrust is how long after a step a wall clock is not believed, less a margin, and
// wallDoubt with one; earlySlack is by how much clocks that nothing has set may differ.
const (
	wallTrust  = 50 * time.Second
	wallDoubt  = 70 * time.Second
	earlySlack = 5 * time.Second
)

// g9NotEarly: a bound ends a run when it has passed, not before and not long after,
// whatever a wall clock says that has just been set, or that most others do not agree
// with. It is judged where nothing but that befalls the world, and where the run was
// queued while all clocks were right.
type g9NotEarly struct {
	nodes int
	// steps are those of wall clocks; one that lasts has no end yet.
	steps []wallStep
	// others counts the other faults under way, otherAt is when one last began or ended.
	others  int
	otherAt time.Duration
	// asked is when a client first asked for a run that has not ended: its bounds count
	// from there, however long the store took to create it.
	asked map[string]time.Duration
	// drifts says that a machine's clocks have drifted apart at some time: they may be
	// off since.
	drifts bool
	// stood says that a wall clock has stood still: it is behind since, so what is queued
	// by it has waited for long already. It stops no command early.
	stood bool
}

type wallStep struct {
	node       string
	begin, end time.Duration
}

func (*g9NotEarly) Guarantee() Guarantee { return G9 }

func (g *g9NotEarly) Observe(l *Ledger, e history.Event, report func(Finding)) {
	switch e.Kind {
	case history.KindFault:
		if f, ok := e.Detail.(history.Fault); ok {
			g.fault(e, f)
		}
	case history.KindDaemon, history.KindMachine:
		g.otherAt = e.At
	case history.KindCall:
		if _, known := g.asked[e.Run]; !known && e.Run != "" {
			if g.asked == nil {
				g.asked = map[string]time.Duration{}
			}
			g.asked[e.Run] = e.At
		}
	case history.KindCommit:
		for _, r := range l.Changed() {
			queued := g.queued(r)
			if text := g.early(l, r, queued); text != "" && g.judges(l.now, r) {
				report(Finding{Run: r.ID, Text: text})
			}
			if r.Terminal() && r.Rewritten && r.Record.GetReason() == recordv1.Reason_REASON_START_DEADLINE {
				g.late(l, r, report)
			}
			if c := stoppedEarly(r); c != nil && g.clocksRight(c.Started) {
				report(Finding{Run: r.ID, Node: c.Node, Text: fmt.Sprintf("%v was stopped by its timeout of %v after %v", c, milli(c.TimeoutMs), c.Ended-c.Started)})
			}
			if r.Terminal() {
				delete(g.asked, r.ID)
			}
		}
	default:
	}
}

// stoppedEarly returns the command that a commit records as timed out, if the engine has
// stopped it before its timeout.
func stoppedEarly(r *Run) *Command {
	if !r.Terminal() || !r.Rewritten || records.Terminal(r.Before.GetStatus()) || r.Record.GetStatus() != recordv1.Status_STATUS_TIMED_OUT {
		return nil
	}
	last := lastAttempt(r.Record)
	if last.GetNumber() != r.Record.GetAttempt() {
		return nil // it waited for another attempt
	}
	c := r.CommandOf(last.GetNumber(), last.GetPlacement())
	if c == nil || c.Alive || c.Cause != "signal" && c.Cause != "kill" || c.Ended-c.Started >= milli(c.TimeoutMs-c.TimeoutMs/100)-earlySlack {
		return nil
	}
	return c
}

// clocksRight tells whether all wall clocks were right since a moment. What else befell
// the world is no reason to stop a command before its time.
func (g *g9NotEarly) clocksRight(since time.Duration) bool {
	for _, s := range g.steps {
		if s.end == 0 || s.end >= since {
			return false
		}
	}
	return !g.drifts
}

func (g *g9NotEarly) fault(e history.Event, f history.Fault) {
	g.drifts = g.drifts || f.Name == "drift"
	g.stood = g.stood || driftsApart(e)
	switch {
	case f.Name != "wall_step" && f.Begin:
		g.others, g.otherAt = g.others+1, e.At
	case f.Name != "wall_step":
		g.others, g.otherAt = max(g.others-1, 0), e.At
	case f.Begin:
		g.steps = append(g.steps, wallStep{node: e.Node, begin: e.At})
	default:
		for i := range g.steps {
			if s := &g.steps[i]; s.node == e.Node && s.end == 0 {
				s.end = e.At
				return
			}
		}
	}
}

// judges tells whether the clocks by which a run was bounded were right, or known not
// to be: for a while after a step by whoever has taken it, and for as long as it lasts
// where most clocks are right.
func (g *g9NotEarly) judges(now time.Duration, r *Run) bool {
	queued := g.queued(r)
	if g.others > 0 || g.otherAt >= queued || g.stood {
		return false
	}
	believed := false
	wrong := map[string]bool{}
	for _, s := range g.steps {
		lasts := s.end == 0
		if s.begin <= r.Queued && (lasts || s.end >= queued) {
			return false
		}
		if lasts {
			wrong[s.node] = true
			believed = believed || now-s.begin > wallTrust
		}
	}
	return !believed || 2*len(wrong) < g.nodes
}

// Expensive reports the runs that wait for longer than they may.
func (g *g9NotEarly) Expensive(l *Ledger, report func(Finding)) {
	for _, r := range l.live {
		if r.Record.GetStatus() == recordv1.Status_STATUS_PENDING {
			g.late(l, r, report)
		}
	}
}

// late reports a run that has waited for its start long beyond its deadline although
// most clocks are right. Where all are, the bound is that of a calm world.
func (g *g9NotEarly) late(l *Ledger, r *Run, report func(Finding)) {
	spec := r.Record.GetSpec()
	bound, waited := milli(spec.GetStartDeadlineMs()), l.now-r.Queued
	if len(g.steps) == 0 || bound <= 0 || waited <= bound+milli(spec.GetStopGraceMs())+l.config.Slack || !g.judges(l.now, r) || !g.outnumbered(r) {
		return
	}
	report(Finding{Run: r.ID, Text: fmt.Sprintf("waited %v for its start, and its start deadline is %v: only some clocks are wrong", waited, bound)})
}

// outnumbered tells whether most clocks were right, and believed to be, for all the time
// that a run has waited.
func (g *g9NotEarly) outnumbered(r *Run) bool {
	wrong := map[string]bool{}
	for _, s := range g.steps {
		if s.end == 0 || s.end+wallDoubt >= r.Queued {
			wrong[s.node] = true
		}
	}
	return 2*len(wrong) < g.nodes
}

// queued is the earliest moment from which a run's bounds may count.
func (g *g9NotEarly) queued(r *Run) time.Duration {
	if at, known := g.asked[r.ID]; known && r.Created == r.Queued {
		return min(at, r.Queued)
	}
	return r.Queued
}

// early says which bound ended a run before it had passed.
func (*g9NotEarly) early(l *Ledger, r *Run, queued time.Duration) string {
	if !r.Terminal() || !r.Rewritten || records.Terminal(r.Before.GetStatus()) {
		return ""
	}
	spec, waited := r.Record.GetSpec(), l.now-queued
	last := lastAttempt(r.Record)
	var ran *Command
	if last.GetNumber() == r.Record.GetAttempt() && last != nil {
		ran = r.CommandOf(last.GetNumber(), last.GetPlacement())
	}
	switch bound := milli(spec.GetStartDeadlineMs()); {
	case r.Record.GetReason() == recordv1.Reason_REASON_START_DEADLINE && bound > 0 && waited < bound-bound/100-earlySlack:
		return fmt.Sprintf("ended by its start deadline of %v after %v", bound, waited)
	case r.Record.GetStatus() == recordv1.Status_STATUS_TIMED_OUT && ran != nil && !ran.Alive && ran.Ended-ran.Started < milli(spec.GetTimeoutMs()-spec.GetTimeoutMs()/100)-earlySlack:
		return fmt.Sprintf("%v timed out after %v", ran, ran.Ended-ran.Started)
	}
	return ""
}
