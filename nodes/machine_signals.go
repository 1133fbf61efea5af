package nodes

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// SignalNoteDelay is how long a command may take to end on a stop signal before the
// signal is journaled by itself. An end within it carries the signal in its own
// write, so that an ordinary stop costs no further one.
const SignalNoteDelay = 100 * time.Millisecond

// note keeps that a stop signal is being sent now. Whether it reaches the process
// stays open until the driver has answered.
func (m *Machine) note(p *placement, signal int32) *recordv1.SentSignal {
	sent := &recordv1.SentSignal{Signal: signal, At: m.now.Milli(), Cause: p.entry.GetStopCause()}
	p.entry.Signals = records.AddSignal(p.entry.GetSignals(), sent)
	return sent
}

// answered keeps what the driver said of a signal, and sees to it that a crash
// before the command's end does not lose it. A command that does not exist, or not
// any more, was not reached; any other error leaves that open.
func (m *Machine) answered(p *placement, sent *recordv1.SentSignal, result SandboxResult) {
	if p.ended() {
		// The fence did not wait for it, and what is told of an end stays.
		return
	}
	switch {
	case result.Err == nil:
		sent.Delivered = proto.Bool(result.Delivered)
	case records.ClassOf(result.Err) == records.ClassNotFound:
		sent.Delivered = proto.Bool(false)
	}
	if !p.started() {
		return
	}
	m.after("note/"+p.id, SignalNoteDelay, func() {
		if p.started() {
			m.persist(p, func() {})
		}
	})
}

// takeSignals moves the signals that were sent to the exit that ends a placement,
// and tells whether one of them is known to have reached the process, be it in an
// earlier life of the node.
func takeSignals(entry *recordv1.JournalEntry, exit *recordv1.Exit) bool {
	exit.Signals, entry.Signals = entry.GetSignals(), nil
	for _, sent := range exit.GetSignals() {
		if sent.GetDelivered() {
			return true
		}
	}
	return false
}
