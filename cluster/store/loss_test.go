package store

import (
	"testing"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

func TestLose(t *testing.T) {
	answers := func(w *world) []string { return []string{w.keys.Run(testRun), w.keys.Node(testNode)} }
	lose := func(w *world, mod, session int64) records.Txn {
		return w.keys.Lose(w.run(func(r *recordv1.Run) { r.Status = recordv1.Status_STATUS_FAILED }), mod, 0, testNode, session)
	}
	ended := func(w *world, _ records.Result) {
		if _, assigned := w.get(w.keys.Assignment(testNode, testRun)); assigned {
			w.t.Error("the assignment is still there")
		}
		if _, live := w.get(w.keys.Live(testRun)); live {
			w.t.Error("the run is still live")
		}
	}
	testBuilder(t, []step{
		{
			name: "of a node without a session", succeeds: true, then: ended,
			build: func(w *world) records.Txn {
				mod, session := w.placed()
				w.delete(w.keys.Node(testNode))
				return lose(w, mod, session)
			},
		},
		{
			name: "of a node that has registered anew", succeeds: true, then: ended,
			build: func(w *world) records.Txn {
				mod, session := w.placed()
				w.delete(w.keys.Node(testNode))
				w.put(w.keys.Node(testNode), &recordv1.NodeSession{})
				return lose(w, mod, session)
			},
		},
		{
			name: "of a node that has its session", answers: answers,
			build: func(w *world) records.Txn { mod, session := w.placed(); return lose(w, mod, session) },
		},
		{
			name: "of a run that moved", answers: answers,
			build: func(w *world) records.Txn {
				mod, session := w.placed()
				w.delete(w.keys.Node(testNode))
				w.put(w.keys.Run(testRun), w.run(nil))
				return lose(w, mod, session)
			},
		},
	})
}

func TestLiveSaysWhereTheRunIsPlaced(t *testing.T) {
	testBuilder(t, []step{{
		name: "of a placed run", succeeds: true,
		build: func(w *world) records.Txn { mod := w.created(); return w.placeTxnWithSlot(mod, w.registered()) },
		then: func(w *world, _ records.Result) {
			kv, _ := w.get(w.keys.Live(testRun))
			live, session := &recordv1.Live{}, int64(0)
			if node, ok := w.get(w.keys.Node(testNode)); ok {
				session = node.Create
			}
			if err := records.Decode(kv, live); err != nil || live.GetNode() != testNode || live.GetSession() != session {
				w.t.Errorf("live is %v, the session %d", live, session)
			}
		},
	}})
}

func (w *world) placeTxnWithSlot(mod, session int64) records.Txn {
	w.t.Helper()
	w.put(w.keys.Slot(testGate, testRun), &recordv1.Live{})
	return w.placeTxn(mod, session)
}
