package pace

import (
	"testing"
	"time"
)

func TestHealth(t *testing.T) {
	type reading struct{ boot, offset time.Duration }
	const s, ms = time.Second, time.Millisecond
	every := func(interval, until time.Duration, offset func(boot time.Duration) time.Duration) (r []reading) {
		for boot := s; boot <= until; boot += interval {
			r = append(r, reading{boot, offset(boot)})
		}
		return r
	}
	stepAt := func(at, size time.Duration) func(time.Duration) time.Duration {
		return func(boot time.Duration) time.Duration {
			if boot >= at {
				return size
			}
			return 0
		}
	}
	cases := []struct {
		name     string
		readings []reading
		want     bool
	}{
		{"first reading", []reading{{s, 0}}, true},
		{"steady", every(s, 300*s, stepAt(0, 0)), true},
		{"step forward just now", every(s, 100*s, stepAt(100*s, s)), false},
		{"step back just now", every(s, 100*s, stepAt(100*s, -s)), false},
		{"step within the bound", every(s, 100*s, stepAt(100*s, 400*ms)), true},
		{"step 59 s ago", every(s, 159*s, stepAt(100*s, s)), false},
		{"step 70 s ago", every(s, 170*s, stepAt(100*s, s)), true},
		{"step there and back", append(every(s, 100*s, stepAt(99*s, s)), reading{101 * s, 0}), false},
		{"small steps that add up", every(s, 100*s, func(b time.Duration) time.Duration { return b / s * 20 * ms }), false},
		{"slewing of NTP", every(s, 300*s, func(b time.Duration) time.Duration { return b / 2000 }), true},
		{"step while nobody looked", []reading{{s, 0}, {900 * s, s}}, false},
		{"step while nobody looked, a minute later", []reading{{s, 0}, {900 * s, s}, {970 * s, s}}, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var h Health
			epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			var boot time.Duration
			for _, r := range c.readings {
				boot = r.boot
				h.Observe(boot, epoch.Add(boot+r.offset))
			}
			if got := h.Good(boot); got != c.want {
				t.Errorf("healthy: %v, want %v", got, c.want)
			}
		})
	}
}

func TestLead(t *testing.T) {
	const s, day = time.Second, 24 * time.Hour
	for _, test := range []struct {
		name   string
		own    time.Duration
		others []time.Duration
		want   time.Duration
	}{
		{"alone", day, nil, 0},
		{"of two nobody knows", day, []time.Duration{0}, 0},
		{"of three one is ahead", day, []time.Duration{0, s}, day - s},
		{"of three one is behind", -day, []time.Duration{s, 0}, -day},
		{"a good one beside one that is ahead", 0, []time.Duration{day, s}, -s},
		{"a good one beside one that is behind", s, []time.Duration{-day, 0}, s},
		{"in the middle of three", s, []time.Duration{day, 0}, 0},
		{"of four one is ahead", day, []time.Duration{0, s, -s}, day - s},
		{"two of four are ahead alike", day, []time.Duration{0, day, 0}, 0},
		{"two of five are ahead alike", day, []time.Duration{0, day, 0, 0}, day},
		{"most are wrong", 0, []time.Duration{day, day}, -day},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := Lead(test.own, test.others); got != test.want {
				t.Errorf("ahead by %v, want %v", got, test.want)
			}
		})
	}
}
