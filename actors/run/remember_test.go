package run

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// eventsBytesMax bounds what all events of a record take, whatever becomes of its run.
const eventsBytesMax = 14 << 10

func TestEventsOfARecordAreBounded(t *testing.T) {
	run := newRun()
	bare := proto.Size(run)
	long := strings.Repeat("a registry that has much to say; ", 100)
	for i := range 1000 {
		run.Placements++
		remember(run, &recordv1.RunEvent{
			Kind: eventLeft, At: ms(time.Duration(i) * time.Second), Attempt: 1, Placement: run.GetPlacements(), Node: strings.Repeat("n", 63),
			Reason: recordv1.Reason_REASON_IMAGE_PULL, Message: long, PlacedAt: ms(time.Duration(i) * time.Second), Until: ms(time.Hour), By: "ann@build-7",
		})
		if grown := proto.Size(run) - bare; grown > eventsBytesMax {
			t.Fatalf("after %d events the record has grown by %d bytes", i+1, grown)
		}
	}
	t.Logf("%d bytes at the most", proto.Size(run)-bare)
	if n := len(run.GetEvents()); n != eventsFirst+eventsLast || int(run.GetEventsLeftOut()) != 1000-n {
		t.Fatalf("%d events kept, %d left out", n, run.GetEventsLeftOut())
	}
	if first, last := run.GetEvents()[0], run.GetEvents()[eventsFirst+eventsLast-1]; first.GetPlacement() != 1 || last.GetPlacement() != 1000 || len(last.GetMessage()) > eventBytesMax+len("…") {
		t.Errorf("kept from %d to %d, words of %d bytes", first.GetPlacement(), last.GetPlacement(), len(last.GetMessage()))
	}
}

// An ordinary run has no events of its own: its history follows from what its record holds
// anyway.
func TestRunWithoutTroubleKeepsNoEvents(t *testing.T) {
	b := newBench(t, true, "n1")
	b.place()
	b.receive(&actorv1.Started{Run: testID, Attempt: 1, Placement: 1, Node: "n1", At: ms(time.Second)})
	b.land()
	b.receive(&actorv1.Exited{Run: testID, Attempt: 1, Placement: 1, Node: "n1", Exit: exitOf(0)})
	b.land()
	run := b.record()
	if n := len(run.GetEvents()); n > 0 {
		t.Errorf("%d events", n)
	}
	events, _ := History(run)
	var kinds []string
	for _, e := range events {
		kinds = append(kinds, strings.TrimPrefix(e.Kind.String(), "RUN_EVENT_KIND_"))
	}
	if got := strings.Join(kinds, " "); got != "QUEUED PLACED STARTED EXITED FINISHED" {
		t.Errorf("the history is %s", got)
	}
	with := proto.Size(run)
	run.GetAttempts()[0].PlacedAt = 0
	t.Logf("the history of an ordinary run takes %d bytes of %d", with-proto.Size(run), with)
	one := &recordv1.Run{Events: []*recordv1.RunEvent{{
		Kind: eventLeft, At: ms(0), Attempt: 1, Placement: 1, Node: "n1", Reason: recordv1.Reason_REASON_IMAGE_PULL,
		Message: "pull image registry.example/a:1: 503 Service Unavailable", PlacedAt: ms(0), Until: ms(time.Second),
	}}}
	t.Logf("an event takes about %d bytes", proto.Size(one))
}
