package nodes

import (
	"fmt"
	"testing"
	"time"

	"github.com/errand-run/errand/actors"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// ofTimeouts is the only timer that a machine has set of all its timeouts, and for how
// long.
func ofTimeouts(effects []actors.Effect) (sets int, after time.Duration) {
	for _, effect := range effects {
		if timer, ok := effect.(actors.SetTimer); ok {
			sets++
			after = timer.After
		}
	}
	return sets, after
}

func TestNodeAtRestWakesOnceAMinuteHoweverManyTimeoutsItWatches(t *testing.T) {
	for _, count := range []int{1, 10, 10_000} {
		t.Run(fmt.Sprintf("%d runs", count), func(t *testing.T) {
			s := newStation(t)
			m, now := s.machine, s.now
			m.now, m.out = now, nil
			for i := range count {
				m.watchTimeout(m.add(&recordv1.JournalEntry{
					Run: fmt.Sprintf("r.default.x%d", i), Attempt: 1, Placement: 1, State: recordv1.JournalState_JOURNAL_STATE_STARTED,
					StartedBoottimeNs: now.Boot.Nanoseconds(), TimeoutMs: (24 * time.Hour).Milliseconds(),
				}, nil))
			}
			if sets, after := ofTimeouts(m.out); sets != 1 || after != TimeoutStep {
				t.Fatalf("timers set %d times, the last for %s", sets, after)
			}
			turns := 0
			for end := now.Mono + time.Hour; now.Mono < end; turns++ {
				now.Mono, now.Boot, now.Wall = now.Mono+TimeoutStep, now.Boot+TimeoutStep, now.Wall.Add(TimeoutStep)
				effects := m.Step(now, actors.TimerFired{Name: timerTimeouts})
				if sets, after := ofTimeouts(effects); sets != 1 || after != TimeoutStep || len(effects) > 2 {
					t.Fatalf("%d effects of a look, timers set %d times, the last for %s", len(effects), sets, after)
				}
			}
			if turns != 60 {
				t.Errorf("%d turns in an hour", turns)
			}
		})
	}
}

func TestTimeoutsEndInTheirOrderAndNotBefore(t *testing.T) {
	s := newStation(t)
	m, now := s.machine, s.now
	m.now, m.out = now, nil
	placements := map[time.Duration]*placement{}
	for _, timeout := range []time.Duration{70 * time.Second, 10 * time.Second, 40 * time.Second} {
		p := m.add(&recordv1.JournalEntry{
			Run: "r.default." + timeout.String(), Attempt: 1, Placement: 1, State: recordv1.JournalState_JOURNAL_STATE_STARTED,
			StartedBoottimeNs: now.Boot.Nanoseconds(), TimeoutMs: timeout.Milliseconds(),
		}, nil)
		m.watchTimeout(p)
		placements[timeout] = p
	}
	if sets, after := ofTimeouts(m.out); sets != 2 || after != 10*time.Second {
		t.Fatalf("timers set %d times, the last for %s, want the one of a minute brought forward to 10 s", sets, after)
	}
	m.unwatchTimeout(placements[40*time.Second])
	for at := range 80 {
		now.Mono, now.Boot = s.now.Mono+time.Duration(at)*time.Second, s.now.Boot+time.Duration(at)*time.Second
		m.Step(now, actors.TimerFired{Name: timerTimeouts})
		for timeout, p := range placements {
			over := time.Duration(at)*time.Second >= timeout && timeout != 40*time.Second
			if got := p.entry.GetStopCause() == recordv1.StopCause_STOP_CAUSE_TIMEOUT; got != over {
				t.Fatalf("after %d s the timeout of %s is over: %v", at, timeout, got)
			}
		}
	}
}
