package check

import (
	"fmt"
	"time"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/history"
)

// commandSlack is how much later than promised a command may end. It is less than the
// time after which the run's actor takes a hand: that is for nodes that fail.
const commandSlack = 10 * time.Second

// g9Bounded: a command on a machine that nothing befell ends within its timeout, the
// stop grace and the time that a kill may take; a run waits no longer than its start
// deadline while the whole world is calm; a wish is heard.
type g9Bounded struct{}

func (g9Bounded) Guarantee() Guarantee { return G9 }

func (g g9Bounded) Observe(l *Ledger, e history.Event, report func(Finding)) {
	c, ok := e.Detail.(history.Command)
	if e.Kind != history.KindCommand || !ok || c.Started {
		return
	}
	r := l.Run(e.Run)
	if ended := r.CommandOf(e.Attempt, e.Placement); ended != nil && !ended.Alive {
		g.judge(l, r, ended, ended.Ended, report)
	}
}

func (g g9Bounded) Expensive(l *Ledger, report func(Finding)) {
	for _, r := range l.live {
		for _, c := range r.Commands {
			if c.Alive {
				g.judge(l, r, c, l.now, report)
			}
		}
	}
	since, calm := l.CalmSince()
	if !calm {
		return
	}
	for _, r := range l.live {
		g.waits(l, r, since, report)
	}
}

// judge reports a command that ran too long.
func (g9Bounded) judge(l *Ledger, r *Run, c *Command, until time.Duration, report func(Finding)) {
	if c.TimeoutMs <= 0 || !l.machine(c.Node).undisturbed(c.Started) || !l.world.undisturbed(c.Started) {
		return
	}
	bound := milli(c.TimeoutMs+c.GraceMs) + l.config.Session.KillBudget
	bound += time.Duration(float64(bound)*l.config.Session.Drift) + commandSlack
	if ran := until - c.Started; ran > bound {
		report(Finding{Run: r.ID, Node: c.Node, Text: fmt.Sprintf("%v ran for %v, and its timeout is %v", c, ran, milli(c.TimeoutMs))})
	}
}

// waits reports a run that waits too long in a calm world: for its start, or for a
// recorded wish to be heard.
func (g9Bounded) waits(l *Ledger, r *Run, calmSince time.Duration, report func(Finding)) {
	spec, run := r.Record.GetSpec(), r.Record
	started := r.Record.GetStatus() == recordv1.Status_STATUS_RUNNING
	// A run whose attempt waits may be held by its node for as long as a stop takes.
	bound := milli(spec.GetStartDeadlineMs()+spec.GetStopGraceMs()) + l.config.Slack
	if run.GetAttempt() > 1 {
		bound += leastBackoff(run) * time.Duration(spec.GetRetry().GetJitterPercent()) / 100
	}
	waited := l.now - max(r.Queued, calmSince)
	if !started && !r.Misdated && spec.GetStartDeadlineMs() > 0 && waited > bound {
		report(Finding{Run: r.ID, Text: fmt.Sprintf("waited %v for its start, and its start deadline is %v (%s)", waited, milli(spec.GetStartDeadlineMs()), Why(run))})
	}
	if run.GetWish() == nil {
		return
	}
	bound = milli(spec.GetStopGraceMs()) + l.config.Session.KillBudget + l.config.Slack
	if waited = l.now - max(r.Wished, calmSince); waited > bound {
		report(Finding{Run: r.ID, Text: fmt.Sprintf("was to end (%s) and has not for %v", records.Word(run.GetWish().GetReason()), waited)})
	}
}

func milli(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }
