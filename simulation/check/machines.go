package check

import (
	"time"

	"github.com/errand-run/errand/simulation/history"
)

// harmless are the faults after which a node still finds what it has started, and how
// that has ended: they cut it off, stop its daemon, or make it wait.
var harmless = map[string]bool{
	"cut": true, "noise": true, "hold": true, "view": true, "flap": true, "doubled_tell": true, "selected": true,
	"crash": true, "restart": true, "panic": true, "disk_stall": true, "disk_full": true, "disk_errors": true,
	"wall_step": true, "drift": true, "store_away": true, "watch_lag": true, "unknown": true, "leader_pause": true,
	"leader_change": true, "member_cut": true, "compaction": true, "store_refuses": true, "slow_create": true,
	"failed_start": true, "runtime_away": true, "doubled_exit": true, "guard_death": true,
}

// forgetful are the faults that take a journal, or a part of it, from its machine.
var forgetful = map[string]bool{"disk_swap": true, "disk_revert": true, "disk_torn": true, "disk_loss": true, "namesake": true}

// pauseSlack is what a machine may take to look around when it is resumed.
const pauseSlack = time.Second

// machine is what has befallen one machine.
type machine struct {
	active      int
	disturbedAt time.Duration
	disturbed   bool
	// outside counts the faults under way that break the fencing model; outsideAt is
	// when the last one ended and why names the last that began.
	outside   int
	outsideAt time.Duration
	why       string
	// paused machines stand still; resumedAt is when the last long pause ended.
	paused              bool
	pausedAt, resumedAt time.Duration
	// launchedAt is when a daemon was last launched or ended.
	launchedAt time.Duration
	// undoneAt is when the disk last lost something that it had synced.
	undoneAt time.Duration
	// hidden counts the faults under way by which a node may lose sight of a command, or
	// of its end; hiddenAt is when one last began or ended.
	hidden   int
	hiddenAt time.Duration
	// commands are how many run on it.
	commands int
	// word is what was said of it.
	word word
}

func (l *Ledger) machine(node string) *machine {
	if node == "" {
		return &l.world
	}
	m, ok := l.machines[node]
	if !ok {
		m = &machine{}
		l.machines[node] = m
	}
	return m
}

func (l *Ledger) fault(e history.Event, f history.Fault) {
	m := l.machine(e.Node)
	m.disturbed, m.disturbedAt = true, e.At
	change := -1
	if f.Begin {
		change = 1
	}
	m.active = max(m.active+change, 0)
	if f.Name == "wall_step" {
		l.steps, l.steppedAt = max(l.steps+change, 0), e.At
	}
	l.forgot = l.forgot || forgetful[f.Name]
	if !harmless[f.Name] {
		m.hidden, m.hiddenAt = max(m.hidden+change, 0), e.At
	}
	if f.Outside {
		m.outside, m.outsideAt = max(m.outside+change, 0), e.At
		if f.Begin {
			m.why = f.Name
		}
	}
}

// pause notes when a machine stands still, and when its disk has lied. The texts are those of package machine.
func (m *machine) pause(e history.Event) {
	switch e.Text {
	case "disk undoes its last write", "no memory of what the disk held before":
		m.undoneAt = e.At
	case "stopped", "suspended", "frozen":
		if !m.paused {
			m.paused, m.pausedAt = true, e.At
		}
	case "resumed", "power off":
		if m.paused && e.At-m.pausedAt >= time.Second {
			m.resumedAt = e.At
		}
		m.paused = false
	default:
	}
}

// Undone says that the disk of a command's machine has lost, since its start, what it
// had told to be synced, or was put back to before that and the power went before
// anybody looked; it is empty when it has not. No journal holds on such a disk.
func (l *Ledger) Undone(c *Command) string {
	if m := l.machine(c.Node); m.undoneAt > 0 && m.undoneAt >= c.Started {
		return "the disk of " + c.Node + " lost what it had synced"
	}
	return ""
}

// Outside says which fault has put one of the machines outside the fencing model, or
// did so less than a lease's worth of time ago; it is empty when they are inside. A
// machine that stands still kills nothing, so a pause is a kill that comes later than
// its budget: what stood still runs again from the end of the pause to that of the
// kill.
func (l *Ledger) Outside(machines ...string) string {
	session := l.config.Session
	tail := 2*session.Lease + session.KillBudget
	for _, node := range append(machines, "") {
		m := l.machine(node)
		if m.paused || m.resumedAt > 0 && l.now-m.resumedAt <= session.KillBudget+pauseSlack {
			return "a pause of " + node + " longer than its kill may take"
		}
		if m.why == "" || m.outside == 0 && l.now-m.outsideAt > tail {
			continue
		}
		if node == "" {
			return m.why
		}
		return m.why + " on " + node
	}
	return ""
}

// InSight tells whether nothing has befallen a command by which its node may have lost
// sight of it, or of its end.
func (l *Ledger) InSight(c *Command) bool {
	for _, m := range []*machine{l.machine(c.Node), &l.world} {
		if m.hidden > 0 || m.hiddenAt >= c.Started && m.hiddenAt > 0 {
			return false
		}
	}
	return !l.forgot
}

// undisturbed tells whether nothing has befallen a machine since a moment.
func (m *machine) undisturbed(since time.Duration) bool {
	return m.active == 0 && (!m.disturbed || m.disturbedAt < since)
}

// CalmSince returns since when nothing at all has befallen the world; ok is false
// while a fault lasts.
func (l *Ledger) CalmSince() (since time.Duration, ok bool) {
	if l.world.active > 0 {
		return 0, false
	}
	since = l.world.disturbedAt
	for _, m := range l.machines { // the order does not show
		if m.active > 0 {
			return 0, false
		}
		since = max(since, m.disturbedAt)
	}
	return since, true
}
