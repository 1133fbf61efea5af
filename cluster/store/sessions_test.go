package store

import (
	"testing"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

func sessionAnswers(w *world) []string {
	return []string{w.keys.Node(testNode), w.keys.NodeInfo(testNode), w.keys.Drain(testNode)}
}

func TestRegister(t *testing.T) {
	session := &recordv1.NodeSession{Uuid: "u", Generation: 2}
	info := &recordv1.NodeInfo{Uuid: "u", Generation: 2}
	testBuilder(t, []step{
		{
			name: "of a new node", succeeds: true,
			build: func(w *world) records.Txn { return w.keys.Register(testNode, session, 0, 0, info) },
			then: func(w *world, result records.Result) {
				w.present(w.keys.Node(testNode), w.keys.NodeInfo(testNode))
				if kv, _ := w.get(w.keys.Node(testNode)); kv.Create != result.Revision || kv.Lease != 0 {
					w.t.Errorf("the session is %d under lease %d, the transaction %d", kv.Create, kv.Lease, result.Revision)
				}
			},
		},
		{
			name: "of a known node without a session", succeeds: true,
			build: func(w *world) records.Txn {
				return w.keys.Register(testNode, session, 0, w.put(w.keys.NodeInfo(testNode), info), info)
			},
		},
		{
			name: "when a session is there", answers: sessionAnswers,
			build: func(w *world) records.Txn {
				w.registered()
				kv, _ := w.get(w.keys.NodeInfo(testNode))
				return w.keys.Register(testNode, session, 0, kv.Mod, info)
			},
		},
		{
			name: "when nodeinfo appeared", answers: sessionAnswers,
			build: func(w *world) records.Txn {
				w.put(w.keys.NodeInfo(testNode), info)
				w.put(w.keys.Drain(testNode), &recordv1.Live{})
				return w.keys.Register(testNode, session, 0, 0, info)
			},
		},
		{
			name: "when nodeinfo moved", answers: sessionAnswers,
			build: func(w *world) records.Txn {
				mod := w.put(w.keys.NodeInfo(testNode), info)
				w.put(w.keys.NodeInfo(testNode), info)
				return w.keys.Register(testNode, session, 0, mod, info)
			},
		},
		{
			name: "beside a node of a longer name", succeeds: true,
			build: func(w *world) records.Txn {
				w.put(w.keys.Node(testNode+"0"), session)
				w.put(w.keys.NodeInfo(testNode+"0"), info)
				return w.keys.Register(testNode, session, 0, 0, info)
			},
		},
	})
}

func TestUnregister(t *testing.T) {
	testBuilder(t, []step{
		{
			name: "of the session that was seen", succeeds: true,
			build: func(w *world) records.Txn { return w.keys.Unregister(testNode, w.registered()) },
			then:  func(w *world, _ records.Result) { w.present(w.keys.NodeInfo(testNode)) },
		},
		{
			name: "when it moved", answers: sessionAnswers,
			build: func(w *world) records.Txn {
				mod := w.registered()
				w.put(w.keys.Node(testNode), &recordv1.NodeSession{Uuid: "other"})
				return w.keys.Unregister(testNode, mod)
			},
		},
		{
			name: "when it is gone", answers: sessionAnswers,
			build: func(w *world) records.Txn {
				mod := w.registered()
				w.delete(w.keys.Node(testNode))
				return w.keys.Unregister(testNode, mod)
			},
		},
	})
}

func TestResume(t *testing.T) {
	session := &recordv1.NodeSession{Uuid: "u", Address: "127.0.0.1:2"}
	testBuilder(t, []step{
		{
			name: "of the session that was seen", succeeds: true,
			build: func(w *world) records.Txn { return w.keys.Resume(testNode, w.registered(), session, 0) },
			then: func(w *world, result records.Result) {
				kv, _ := w.get(w.keys.Node(testNode))
				if kv.Mod != result.Revision || kv.Create >= kv.Mod {
					w.t.Errorf("the session is %d, changed at %d: it must stay the same", kv.Create, kv.Mod)
				}
			},
		},
		{
			name: "when it moved", answers: sessionAnswers,
			build: func(w *world) records.Txn {
				mod := w.registered()
				w.put(w.keys.Node(testNode), session)
				return w.keys.Resume(testNode, mod, session, 0)
			},
		},
		{
			name: "when it is gone", answers: sessionAnswers,
			build: func(w *world) records.Txn {
				mod := w.registered()
				w.delete(w.keys.Node(testNode))
				return w.keys.Resume(testNode, mod, session, 0)
			},
		},
	})
}

func TestLoadSession(t *testing.T) {
	testBuilder(t, []step{
		{
			name: "of a node that drains", succeeds: true, answers: sessionAnswers,
			build: func(w *world) records.Txn {
				w.registered()
				w.put(w.keys.Drain(testNode), &recordv1.Live{})
				return w.keys.LoadSession(testNode)
			},
		},
		{
			name: "of an unknown node", succeeds: true, answers: sessionAnswers,
			build: func(w *world) records.Txn { return w.keys.LoadSession(testNode) },
		},
	})
}
