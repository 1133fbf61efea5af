package check

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/history"
)

// unfenced: what asked to wait for its node is neither ended nor given up with the
// node's session. What has to be ended all the same is so by the node itself: where its
// journal, or the store, is an older copy, or by the word that the node is dead, which
// nobody takes of a node that has a session.
type unfenced struct{}

func (unfenced) Guarantee() Guarantee { return Attempts }

func (unfenced) Observe(l *Ledger, e history.Event, report func(Finding)) {
	older := l.forgot || l.raw || l.restoredAt > 0
	switch e.Kind {
	case history.KindCommand:
		c, ok := e.Detail.(history.Command)
		if r := l.Run(e.Run); ok && !older && !c.Started && c.Cause == "fence" && r != nil && waitsForNode(r.Record) && !l.Dead(e.Node) {
			report(Finding{Run: e.Run, Node: e.Node, Text: "its command was ended by the fence, and it asked to wait for its node"})
		}
	case history.KindCommit:
		for _, r := range l.Changed() {
			if text := givenUp(l, r, older); text != "" {
				report(Finding{Run: r.ID, Text: text})
			}
		}
		if c, ok := e.Detail.(history.Commit); ok {
			for _, node := range l.saidWrongly(c) {
				report(Finding{Node: node, Text: node + " is said to be dead and has a session"})
			}
		}
	default:
	}
}

// givenUp says that an attempt was ended with its node's session although its run asked
// to wait for that. older says that a journal, or the store, may be an older copy.
func givenUp(l *Ledger, r *Run, older bool) string {
	if !r.Rewritten || !waitsForNode(r.Record) || proto.Equal(lastAttempt(r.Before), lastAttempt(r.Record)) {
		return ""
	}
	said := l.byWord(r)
	over := lastAttempt(r.Record)
	switch reason := over.GetReason(); {
	case reason == recordv1.Reason_REASON_NODE_LOST && (!said || over.GetSafeBy() != recordv1.SafeBy_SAFE_BY_WORD),
		reason == recordv1.Reason_REASON_NODE_FENCED && !older && !said:
		return fmt.Sprintf("attempt %d is %s, and it asked to wait for its node", over.GetNumber(), records.Word(reason))
	}
	return ""
}

func waitsForNode(run *recordv1.Run) bool {
	return run.GetSpec().GetRetry().GetOnNodeLoss() == recordv1.OnNodeLoss_ON_NODE_LOSS_WAIT
}
