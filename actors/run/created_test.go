package run

import (
	"testing"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// created is the news of a run as its creation left it.
func created(b *bench) *actorv1.Wake {
	kv := b.store.keys[b.keys.Run(testID)]
	return &actorv1.Wake{Run: testID, Record: kv.Value, Revision: kv.Mod}
}

// anew is an activation that has heard nothing yet.
func (b *bench) anew() {
	b.step(actors.Activated{})
	b.tells = nil
	if b.commit != nil || b.leaves {
		b.t.Fatalf("an activation without a message sent %v, leaves %t", b.commit, b.leaves)
	}
}

func TestRunThatWasJustCreatedIsPlacedWithoutARead(t *testing.T) {
	b := newBench(t, true, "n1")
	b.anew()
	b.receive(created(b))
	if _, m := b.told(); b.commit != nil || m.(*actorv1.Reserve).GetRun() != testID {
		t.Fatalf("sent %v, told %v", b.commit, m)
	}
	b.reserved("n1", true, b.sessionOf("n1"))
	if b.commit == nil || b.commit.Txn.Change != records.ChangePlace {
		t.Fatalf("sent %v", b.commit)
	}
	b.landOne()
	if b.commit != nil || b.record().GetPlacement().GetNode() != "n1" {
		t.Fatalf("then sent %v; %v", b.commit, b.record())
	}
}

func TestNewsOfACreationThatIsOldIsFoundOut(t *testing.T) {
	cases := []struct {
		name string
		then func(b *bench, placed int64)
	}{
		{"by the commit", func(b *bench, _ int64) {
			b.reserved("n1", true, b.sessionOf("n1"))
			b.land()
		}},
		{"by an exit", func(b *bench, _ int64) {
			code := int32(0)
			b.receive(&actorv1.Exited{Run: testID, Attempt: 1, Placement: 1, Node: "n1", Exit: &recordv1.Exit{Code: &code, At: 5, StartedAt: 4}})
			if b.commit == nil || !b.commit.Txn.ReadOnly() {
				b.t.Fatalf("judged an exit by old news: sent %v", b.commit)
			}
			b.land()
			if got := b.record().GetStatus(); got != recordv1.Status_STATUS_SUCCEEDED {
				b.t.Fatalf("the run is %s", got)
			}
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, true, "n1")
			old := created(b)
			b.place()
			placed, before := b.store.revision, b.record()
			b.anew()
			b.receive(old)
			c.then(b, placed)
			if run := b.record(); run.GetPlacements() != before.GetPlacements() {
				t.Fatalf("was placed again: %v", run)
			}
		})
	}
}

func TestNewsOfACreationThatCanNotBeReadIsPassedOver(t *testing.T) {
	for name, change := range map[string]func(*actorv1.Wake){
		"without a revision": func(w *actorv1.Wake) { w.Revision = 0 },
		"that is no record":  func(w *actorv1.Wake) { w.Record = []byte{0xff} },
		"of another run":     func(w *actorv1.Wake) { w.Record = records.Encode(&recordv1.Run{Id: "r.default.bbbb"}) },
		"of a newer writer": func(w *actorv1.Wake) {
			w.Record = records.Encode(&recordv1.Run{Id: testID, MinWriter: records.Writer + 1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, true, "n1")
			b.anew()
			wake := created(b)
			change(wake)
			b.receive(wake)
			if b.commit == nil || !b.commit.Txn.ReadOnly() {
				t.Fatalf("sent %v, want a read", b.commit)
			}
		})
	}
}
