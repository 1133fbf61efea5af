package run

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// However the command ended, and whether or not anybody saw it, the attempt keeps
// which stop signals it was sent.
func TestAttemptKeepsTheSignalsOfItsExit(t *testing.T) {
	signals := func(n int) []*recordv1.SentSignal {
		var sent []*recordv1.SentSignal
		for i := range n {
			sent = append(sent, &recordv1.SentSignal{Signal: 15, At: int64(i + 1), Cause: recordv1.StopCause_STOP_CAUSE_TIMEOUT})
		}
		return sent
	}
	late := exitOf(0)
	late.Signals = signals(40)
	for _, c := range []struct {
		name string
		exit *recordv1.Exit
		want []int64
	}{
		{"none", exitOf(0), nil},
		{"two", &recordv1.Exit{Code: proto.Int32(137), Signal: 9, StartedAt: 1, StopDelivered: true, Signals: signals(2)}, []int64{1, 2}},
		{"a lost sandbox", &recordv1.Exit{StartedAt: 1, Signals: signals(1)}, []int64{1}},
		{"more than a record holds", late, []int64{1, 38, 39, 40}},
	} {
		t.Run(c.name, func(t *testing.T) {
			message := exited{&actorv1.Exited{Run: testID, Attempt: 1, Placement: 2, Node: "n1", Exit: c.exit}}
			run := decide(at(time.Second), inPhase(running), message).run
			message.Placement = 1
			noted := decide(at(time.Second), inPhase(running), message).run
			for what, got := range map[string][]*recordv1.SentSignal{
				"attempt": run.GetAttempts()[0].GetSignals(), "late exit": noted.GetLateExits()[0].GetExit().GetSignals(),
			} {
				var times []int64
				for _, sent := range got {
					times = append(times, sent.GetAt())
				}
				if !slices.Equal(times, c.want) {
					t.Errorf("%s: signals %v, want %v", what, times, c.want)
				}
			}
		})
	}
}

// Of a clock that is set back while a command runs, only the order of what happened is sure.
func TestWhatIsDoneToACommandFollowsItsStartThoughTheClockWasSetBack(t *testing.T) {
	run := inPhase(running).run
	run.GetAttempts()[0].StartedAt = ms(time.Hour)
	run.GetAttempts()[0].AdoptedAt = ms(time.Minute)
	run.GetAttempts()[0].Signals = []*recordv1.SentSignal{{Signal: 15, At: ms(2 * time.Minute)}}
	run.Wish = &recordv1.Wish{Reason: recordv1.Reason_REASON_CANCELED, At: ms(90 * time.Minute)}
	events, _ := History(run)
	var kinds []string
	for _, e := range events {
		kinds = append(kinds, strings.TrimPrefix(e.Kind.String(), "RUN_EVENT_KIND_"))
	}
	if got := strings.Join(kinds, " "); !strings.HasSuffix(got, "STARTED ADOPTED SIGNAL STOP") {
		t.Errorf("the history is %s", got)
	}
}
