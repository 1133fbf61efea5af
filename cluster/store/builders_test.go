package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// world is a fresh part of a store in which one case of a builder's test runs.
type world struct {
	t    *testing.T
	s    *Store
	keys records.Keys
}

const (
	testRun  = "r.shop.abc"
	testNode = "n1"
	testGate = "t/shop/report"
)

func (w *world) run(change func(*recordv1.Run)) *recordv1.Run {
	run := &recordv1.Run{
		Id: testRun, App: "shop", Task: "report", Name: "nightly", Status: recordv1.Status_STATUS_PENDING,
		Trigger: recordv1.Trigger_TRIGGER_SCHEDULE, Attempt: 1, EndedAt: 1_700_000_000_000, Gates: []string{testGate},
	}
	if change != nil {
		change(run)
	}
	return run
}

func (w *world) do(txn records.Txn) records.Result {
	w.t.Helper()
	return do(w.t, w.s, txn)
}

func (w *world) get(key string) (records.KV, bool) {
	w.t.Helper()
	return w.do(records.Read(records.Get(key))).First(0)
}

// put writes a key as another role would, and returns the revision.
func (w *world) put(key string, record proto.Message) int64 {
	w.t.Helper()
	return w.do(putTxn(key, string(records.Encode(record)))).Revision
}

func (w *world) delete(key string) {
	w.t.Helper()
	w.do(deleteTxn(key))
}

// created puts the run as Create leaves it and returns its revision.
func (w *world) created() int64 {
	w.t.Helper()
	result := w.do(w.keys.Create(w.run(nil), 1000))
	if !result.Succeeded {
		w.t.Fatal("the run could not be created")
	}
	return result.Revision
}

// registered opens the node's session and returns it.
func (w *world) registered() int64 {
	w.t.Helper()
	result := w.do(w.keys.Register(testNode, &recordv1.NodeSession{Uuid: "u"}, 0, 0, &recordv1.NodeInfo{Uuid: "u", Generation: 1}))
	if !result.Succeeded {
		w.t.Fatal("the node could not be registered")
	}
	return result.Revision
}

// placed puts the run on the node and returns its revision.
func (w *world) placed() (mod, session int64) {
	w.t.Helper()
	mod, session = w.created(), w.registered()
	w.put(w.keys.Slot(testGate, testRun), &recordv1.Live{})
	result := w.do(w.placeTxn(mod, session))
	if !result.Succeeded {
		w.t.Fatal("the run could not be placed")
	}
	return result.Revision, session
}

func (w *world) placeTxn(mod, session int64) records.Txn {
	run := w.run(func(r *recordv1.Run) {
		r.Placement = &recordv1.Placement{Node: testNode, Session: session, Number: 1}
	})
	return w.keys.Place(run, mod, 2000, &recordv1.Assignment{Run: testRun, Attempt: 1, Placement: 1, Session: session})
}

// all lists every key of the world without its root.
func (w *world) all() []string {
	w.t.Helper()
	var keys []string
	for _, kv := range w.do(records.Read(records.Range(w.keys.Root))).Responses[0].KVs {
		keys = append(keys, strings.TrimPrefix(kv.Key, w.keys.Root))
	}
	return keys
}

func (w *world) present(keys ...string) {
	w.t.Helper()
	for i, key := range keys {
		keys[i] = strings.TrimPrefix(key, w.keys.Root)
	}
	slices.Sort(keys)
	if got := w.all(); !slices.Equal(got, keys) {
		w.t.Errorf("the store holds\n  %v, want\n  %v", got, keys)
	}
}

// step is one case: arrange the store, build the transaction, look at the answer.
type step struct {
	name  string
	build func(w *world) records.Txn
	// succeeds is the branch that must be taken.
	succeeds bool
	// answers are the keys that the branch reads, in the documented order.
	answers func(w *world) []string
	// then looks at what the transaction left.
	then func(w *world, result records.Result)
}

func (c step) test(t *testing.T, w *world) {
	txn := c.build(w)
	var before []string
	if !c.succeeds {
		before = w.all()
	}
	result := w.do(txn)
	if result.Succeeded != c.succeeds {
		t.Fatalf("succeeded = %v", result.Succeeded)
	}
	if !c.succeeds {
		if after := w.all(); !slices.Equal(before, after) {
			t.Errorf("a refused transaction left %v of %v", after, before)
		}
	}
	if c.answers != nil {
		answers := c.answers(w)
		if len(result.Responses) != len(answers) {
			t.Fatalf("%d answers, want %d", len(result.Responses), len(answers))
		}
		for i, key := range answers {
			want, exists := w.get(key)
			got, ok := result.First(i)
			if ok != exists || got.Key != want.Key || got.Mod != want.Mod || got.Create != want.Create || string(got.Value) != string(want.Value) {
				t.Errorf("answer %d is %+v (%v), want %+v (%v)", i, got, ok, want, exists)
			}
		}
	}
	if c.then != nil {
		c.then(w, result)
	}
}

func testBuilder(t *testing.T, cases []step) {
	t.Helper()
	s := openEmbedded(t)
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			c.test(t, &world{t: t, s: s, keys: records.Keys{Root: fmt.Sprintf("/%d/", i), Shards: 64}})
		})
	}
}

func runOnly(w *world) []string { return []string{w.keys.Run(testRun)} }

func TestCreate(t *testing.T) {
	answers := func(w *world) []string { return []string{w.keys.Run(testRun), w.keys.Gone(testRun)} }
	create := func(w *world) records.Txn { return w.keys.Create(w.run(nil), 1000) }
	testBuilder(t, []step{
		{name: "of a new run", build: create, succeeds: true, then: func(w *world, result records.Result) {
			w.present(w.keys.Run(testRun), w.keys.Live(testRun))
			kv, _ := w.get(w.keys.Run(testRun))
			run, err := records.DecodeRun(kv)
			if err != nil || !proto.Equal(run, w.run(nil)) || kv.Create != result.Revision || kv.Mod != result.Revision {
				w.t.Errorf("the record is %v at %d (%v), written at %d", run, kv.Mod, err, result.Revision)
			}
			live := &recordv1.Live{}
			if kv, _ := w.get(w.keys.Live(testRun)); records.Decode(kv, live) != nil || live.GetNextWake() != 1000 {
				w.t.Errorf("live is %v", live)
			}
		}},
		{name: "of a run that exists", answers: answers, build: func(w *world) records.Txn {
			w.created()
			return create(w)
		}},
		{name: "of a run that was deleted", answers: answers, build: func(w *world) records.Txn {
			w.put(w.keys.Gone(testRun), &recordv1.Gone{DeletedAt: 1})
			return create(w)
		}},
	})
}

func TestPlace(t *testing.T) {
	answers := func(w *world) []string {
		return []string{w.keys.Run(testRun), w.keys.Node(testNode), w.keys.Drain(testNode)}
	}
	// prepared has everything that Place asks for; each case then breaks one thing.
	prepared := func(w *world) (mod, session int64) {
		mod, session = w.created(), w.registered()
		w.put(w.keys.Slot(testGate, testRun), &recordv1.Live{})
		return mod, session
	}
	refused := func(name string, breaks func(w *world)) step {
		return step{name: name, answers: answers, build: func(w *world) records.Txn {
			mod, session := prepared(w)
			breaks(w)
			return w.placeTxn(mod, session)
		}}
	}
	testBuilder(t, []step{
		{name: "on a session that is there", succeeds: true, build: func(w *world) records.Txn {
			return w.placeTxn(prepared(w))
		}, then: func(w *world, result records.Result) {
			w.present(w.keys.Run(testRun), w.keys.Live(testRun), w.keys.Node(testNode), w.keys.NodeInfo(testNode),
				w.keys.Slot(testGate, testRun), w.keys.Assignment(testNode, testRun))
			if kv, _ := w.get(w.keys.Assignment(testNode, testRun)); kv.Create != result.Revision {
				w.t.Errorf("the assignment is of %d, the transaction of %d", kv.Create, result.Revision)
			}
		}},
		refused("when the record moved", func(w *world) { w.put(w.keys.Run(testRun), w.run(nil)) }),
		refused("when the record is gone", func(w *world) { w.delete(w.keys.Run(testRun)) }),
		refused("when the session ended", func(w *world) { w.delete(w.keys.Node(testNode)) }),
		refused("when the node has another session", func(w *world) {
			w.delete(w.keys.Node(testNode))
			w.put(w.keys.Node(testNode), &recordv1.NodeSession{Uuid: "u"})
		}),
		refused("when the node drains", func(w *world) { w.put(w.keys.Drain(testNode), &recordv1.Live{}) }),
		refused("when the node still holds an assignment of the run", func(w *world) {
			w.put(w.keys.Assignment(testNode, testRun), &recordv1.Assignment{Run: testRun})
		}),
		refused("when a slot is not held", func(w *world) { w.delete(w.keys.Slot(testGate, testRun)) }),
		{name: "when another node of a longer name drains", succeeds: true, build: func(w *world) records.Txn {
			mod, session := prepared(w)
			w.put(w.keys.Drain(testNode+"0"), &recordv1.Live{})
			return w.placeTxn(mod, session)
		}},
	})
}

func TestUnplace(t *testing.T) {
	unplace := func(w *world, mod int64) records.Txn { return w.keys.Unplace(w.run(nil), mod, 3000, testNode) }
	testBuilder(t, changes(func(w *world) int64 { mod, _ := w.placed(); return mod }, unplace, func(w *world, _ records.Result) {
		w.present(w.keys.Run(testRun), w.keys.Live(testRun), w.keys.Node(testNode), w.keys.NodeInfo(testNode))
	}))
}

func TestUpdate(t *testing.T) {
	update := func(w *world, mod int64) records.Txn {
		return w.keys.Update(w.run(func(r *recordv1.Run) { r.Status = recordv1.Status_STATUS_RUNNING }), mod, 3000)
	}
	testBuilder(t, changes(func(w *world) int64 { return w.created() }, update, func(w *world, result records.Result) {
		w.present(w.keys.Run(testRun), w.keys.Live(testRun))
		kv, _ := w.get(w.keys.Run(testRun))
		if run, err := records.DecodeRun(kv); err != nil || run.GetStatus() != recordv1.Status_STATUS_RUNNING || kv.Mod != result.Revision {
			w.t.Errorf("the record is %v at %d, %v", run, kv.Mod, err)
		}
	}))
}

func TestWish(t *testing.T) {
	wish := func(w *world, mod int64) records.Txn {
		run := w.run(func(r *recordv1.Run) { r.Wish = &recordv1.Wish{Reason: recordv1.Reason_REASON_CANCELED} })
		return w.keys.Wish(run, mod, 3000, testNode, &recordv1.Assignment{Run: testRun, Desired: recordv1.Desired_DESIRED_STOP})
	}
	testBuilder(t, changes(func(w *world) int64 { mod, _ := w.placed(); return mod }, wish, func(w *world, result records.Result) {
		kv, _ := w.get(w.keys.Assignment(testNode, testRun))
		assignment := &recordv1.Assignment{}
		if err := records.Decode(kv, assignment); err != nil || assignment.GetDesired() != recordv1.Desired_DESIRED_STOP {
			w.t.Errorf("the assignment is %v, %v", assignment, err)
		}
		if kv.Mod != result.Revision || kv.Create >= kv.Mod {
			w.t.Errorf("the assignment is of %d, changed at %d: the fencing token moved", kv.Create, kv.Mod)
		}
	}))
}

func TestEnd(t *testing.T) {
	ended := func(w *world) *recordv1.Run {
		return w.run(func(r *recordv1.Run) { r.Status = recordv1.Status_STATUS_SUCCEEDED })
	}
	prepared := func(w *world) int64 {
		mod, _ := w.placed()
		w.put(w.keys.Queue(testGate, testRun), &recordv1.Live{})
		w.put(w.keys.Overlap("shop", "report", testRun), &recordv1.Live{})
		return mod
	}
	cases := changes(prepared, func(w *world, mod int64) records.Txn { return w.keys.End(ended(w), mod, testNode) },
		func(w *world, _ records.Result) {
			w.present(w.keys.Run(testRun), w.keys.Node(testNode), w.keys.NodeInfo(testNode),
				w.keys.History(testRun, "shop", records.ClassSchedule, 1_700_000_000_000))
			kv, _ := w.get(w.keys.History(testRun, "shop", records.ClassSchedule, 1_700_000_000_000))
			history := &recordv1.History{}
			if err := records.Decode(kv, history); err != nil || history.GetStatus() != recordv1.Status_STATUS_SUCCEEDED || history.GetName() != "nightly" {
				w.t.Errorf("history is %v, %v", history, err)
			}
		})
	cases = append(cases, step{
		name: "of a run that was never placed, without a task", succeeds: true,
		build: func(w *world) records.Txn {
			run := ended(w)
			run.Task, run.Gates, run.Trigger = "", nil, recordv1.Trigger_TRIGGER_API
			return w.keys.End(run, w.created(), "")
		},
		then: func(w *world, _ records.Result) {
			w.present(w.keys.Run(testRun), w.keys.History(testRun, "shop", records.ClassOther, 1_700_000_000_000))
		},
	})
	testBuilder(t, cases)
}

func TestRetire(t *testing.T) {
	ended := func(w *world) *recordv1.Run {
		return w.run(func(r *recordv1.Run) { r.Status = recordv1.Status_STATUS_SUCCEEDED })
	}
	prepared := func(w *world) int64 {
		mod, _ := w.placed()
		return w.do(w.keys.End(ended(w), mod, testNode)).Revision
	}
	retire := func(w *world, mod int64) records.Txn {
		leased := lease(w.t, func(deliver func(records.LeaseResult)) { w.s.Grant(records.TombstoneTTL, deliver) })
		return w.keys.Retire(ended(w), mod, leased.Lease, 1_700_000_000_001)
	}
	cases := changes(prepared, retire, func(w *world, _ records.Result) {
		w.present(w.keys.Gone(testRun), w.keys.Node(testNode), w.keys.NodeInfo(testNode))
		kv, _ := w.get(w.keys.Gone(testRun))
		gone := &recordv1.Gone{}
		if err := records.Decode(kv, gone); err != nil || gone.GetDeletedAt() != 1_700_000_000_001 || kv.Lease == 0 {
			w.t.Errorf("the tombstone is %v with lease %d, %v", gone, kv.Lease, err)
		}
		if w.do(w.keys.Create(w.run(nil), 1000)).Succeeded {
			w.t.Error("the run was created again")
		}
	})
	cases = append(cases, step{
		name: "of a run that has not ended", answers: runOnly,
		build: func(w *world) records.Txn { return retire(w, w.created()) },
	})
	testBuilder(t, cases)
}

func TestNote(t *testing.T) {
	note := func(w *world, mod int64) records.Txn {
		return w.keys.Note(w.run(func(r *recordv1.Run) { r.LateExits = []*recordv1.LateExit{{Attempt: 1}} }), mod)
	}
	testBuilder(t, changes(func(w *world) int64 {
		return w.put(w.keys.Run(testRun), w.run(nil))
	}, note, func(w *world, _ records.Result) { w.present(w.keys.Run(testRun)) }))
}

// changes are the cases of every builder that changes an existing run.
func changes(prepare func(w *world) int64, build func(w *world, mod int64) records.Txn, then func(*world, records.Result)) []step {
	return []step{
		{
			name: "of the record that was read", succeeds: true, then: then,
			build: func(w *world) records.Txn { return build(w, prepare(w)) },
		},
		{
			name: "when the record moved", answers: runOnly,
			build: func(w *world) records.Txn {
				mod := prepare(w)
				w.put(w.keys.Run(testRun), w.run(func(r *recordv1.Run) { r.Message = "moved" }))
				return build(w, mod)
			},
		},
		{
			name: "when the record is gone", answers: runOnly,
			build: func(w *world) records.Txn {
				mod := prepare(w)
				w.delete(w.keys.Run(testRun))
				return build(w, mod)
			},
		},
		{
			name: "when the record was deleted and created again", answers: runOnly,
			build: func(w *world) records.Txn {
				mod := prepare(w)
				w.delete(w.keys.Run(testRun))
				w.put(w.keys.Run(testRun), w.run(nil))
				return build(w, mod)
			},
		},
	}
}

func TestChangesWithoutARevisionPanic(t *testing.T) {
	keys := records.Keys{Root: "/", Shards: 1}
	run := &recordv1.Run{Id: testRun, App: "shop"}
	for name, build := range map[string]func(){
		"Unplace": func() { keys.Unplace(run, 0, 0, testNode) },
		"Update":  func() { keys.Update(run, 0, 0) },
		"Wish":    func() { keys.Wish(run, 0, 0, testNode, &recordv1.Assignment{}) },
		"End":     func() { keys.End(run, 0, "") },
		"Note":    func() { keys.Note(run, -1) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("it would create a run again that was deleted")
				}
			}()
			build()
		})
	}
}

func TestFound(t *testing.T) {
	answers := func(w *world) []string { return []string{w.keys.Cluster()} }
	cluster := &recordv1.Cluster{Shards: 64}
	testBuilder(t, []step{
		{
			name: "of a new cluster", succeeds: true,
			build: func(w *world) records.Txn { return w.keys.Found(cluster) },
			then:  func(w *world, _ records.Result) { w.present(w.keys.Cluster()) },
		},
		{
			name: "when it exists", answers: answers,
			build: func(w *world) records.Txn {
				w.put(w.keys.Cluster(), &recordv1.Cluster{Shards: 8})
				return w.keys.Found(cluster)
			},
		},
	})
}
