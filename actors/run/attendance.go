package run

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// attendGrace is how long an attended run goes on without a sign of its client: so
// long a connection that broke, or a node that was started anew, has to be there again.
const attendGrace = 15 * time.Second

// byAttendance is who cancels a run whose client has gone.
const byAttendance = "errand (its client has gone)"

// attendance is what an activation knows of the client of an attended run. It is in
// memory only: another activation has heard nobody yet, and gives the client the whole
// grace, by its own monotonic clock.
type attendance struct {
	// heard: since is set.
	heard bool
	// since is when there was the last sign of the client; before the first one, when
	// the activation began to wait for it.
	since time.Duration
	// armed: the timer runs.
	armed bool
}

// unattended is the end of the grace without a sign of the client.
type unattended struct{}

func (unattended) column() column { return onUnattended }

// attended tells whether a run ends with its client and is not about to end already.
func attended(run *recordv1.Run) bool {
	return run.GetTrigger() == recordv1.Trigger_TRIGGER_CONSOLE && !records.Terminal(run.GetStatus()) && run.GetWish() == nil
}

// hear takes a sign of the client.
func (m *Machine) hear(now actors.Instant) { m.attendance.heard, m.attendance.since = true, now.Mono }

// unheard tells whether the grace has passed.
func (m *Machine) unheard(now actors.Instant) bool {
	return m.attendance.heard && now.Mono-m.attendance.since >= attendGrace
}

// attends keeps the activation of an attended run, and makes sure that it looks when
// the grace is over: nobody else knows when the client was heard.
func (m *Machine) attends(now actors.Instant) bool {
	a := &m.attendance
	switch {
	case !m.loaded:
		return false
	case !attended(m.snapshot.run):
		if a.armed {
			m.emit(actors.SetTimer{Name: timerAttend, After: -1})
		}
		*a = attendance{}
		return false
	case !a.heard:
		m.hear(now)
	}
	if !a.armed {
		a.armed = true
		m.emit(actors.SetTimer{Name: timerAttend, After: max(a.since+attendGrace-now.Mono, awakeMin)})
	}
	return true
}

// attendTimer looks whether there was a sign meanwhile.
func (m *Machine) attendTimer(now actors.Instant) {
	m.attendance.armed = false
	if m.unheard(now) {
		m.enqueue(unattended{})
	}
}

func attendanceWish(now actors.Instant) *recordv1.Wish {
	return &recordv1.Wish{Reason: recordv1.Reason_REASON_CANCELED, By: byAttendance, At: now.Milli()}
}

func leaveWaiting(now actors.Instant, s snapshot, _ request) decision {
	if !attended(s.run) {
		return decision{}
	}
	run := proto.CloneOf(s.run)
	run.Wish = attendanceWish(now)
	return endByWish(now, snapshot{run: run}, nil)
}

func leavePlaced(now actors.Instant, s snapshot, _ request) decision {
	if !attended(s.run) {
		return decision{}
	}
	return wish(now, s, attendanceWish(now))
}
