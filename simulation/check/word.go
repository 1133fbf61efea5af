package check

import (
	"fmt"
	"strings"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/history"
)

// word is what was said of a machine: that it is dead.
type word struct {
	// revision is that of the last one, stands whether no session was opened since.
	revision int64
	stands   bool
	// session tells whether the node has one.
	session bool
}

// hear notes which sessions there are, and what somebody says of nodes that have none.
func (l *Ledger) hear(revision int64, change history.Change) {
	kind, node, _ := strings.Cut(strings.TrimPrefix(change.Key, l.config.Keys.Root), "/")
	switch kind {
	case "nodes":
		m := l.machine(node)
		m.word.session = change.After != nil
		if change.After != nil && (change.Before == nil || change.Before.Create != change.After.Create) {
			m.word.stands = false
			l.registered = append(l.registered, node)
		}
	case "nodeinfo":
		if removed(change.After) && !removed(change.Before) {
			l.machine(node).word = word{revision: revision, stands: true, session: l.machine(node).word.session}
		}
	}
}

// hearAgain takes what the copy of a store says of nodes in the place of all that was said.
func (l *Ledger) hearAgain(copied []records.KV) {
	for _, m := range l.machines { // the order does not show
		m.word = word{}
	}
	for i := range copied {
		l.hear(copied[i].Mod, history.Change{Key: copied[i].Key, After: &copied[i]})
	}
	l.registered = nil
}

func removed(kv *records.KV) bool {
	info := &recordv1.NodeInfo{}
	return kv != nil && records.Decode(*kv, info) == nil && info.GetRemoved() != nil
}

// Dead tells whether somebody has said of a node that it is dead, and it has not been heard
// of since.
func (l *Ledger) Dead(node string) bool { return l.machine(node).word.stands }

// byWord tells whether the placement that a commit has ended could be ended by a word: its
// run waits for the node, and the word came when that session was over.
func (l *Ledger) byWord(r *Run) bool {
	held := r.Before.GetPlacement()
	return held != nil && waitsForNode(r.Record) && l.machine(held.GetNode()).word.revision > held.GetSession()
}

// excused tells whether a command may run although its run has ended: somebody has said
// that its machine is dead, was wrong, and the machine has opened no session since. It is
// the last command of a run that waits, and of no other.
func (l *Ledger) excused(r *Run, attempt, placement int32, node string) bool {
	last := lastAttempt(r.Record)
	return l.Dead(node) && waitsForNode(r.Record) && last.GetSafeBy() == recordv1.SafeBy_SAFE_BY_WORD &&
		last.GetNode() == node && last.GetNumber() == attempt && last.GetPlacement() == placement
}

// returned reports what still runs of runs that have ended on nodes that have just opened a
// session: whoever comes back from the dead has given it away.
func returned(l *Ledger, report func(Finding)) {
	for _, node := range l.registered {
		if l.machine(node).word.revision == 0 || l.machine(node).commands == 0 {
			continue
		}
		for _, r := range l.order {
			for _, c := range r.Alive() {
				if c.Node == node && r.Terminal() {
					report(Finding{Run: r.ID, Node: node, Text: fmt.Sprintf("%s has a session again and %v still runs, whose run was ended", node, c), Outside: l.Outside(node, r.LeftBy)})
				}
			}
		}
	}
}

// saidWrongly returns the nodes of which a commit says that they are dead while they have a
// session.
func (l *Ledger) saidWrongly(c history.Commit) (nodes []string) {
	for _, change := range c.Changes {
		kind, node, _ := strings.Cut(strings.TrimPrefix(change.Key, l.config.Keys.Root), "/")
		if kind == "nodeinfo" && removed(change.After) && l.machine(node).word.session {
			nodes = append(nodes, node)
		}
	}
	return nodes
}
