package machine

import "time"

// timers are all timers of a machine. They count on its own clocks, so they are set
// again whenever those change.
type timers struct {
	machine     *Machine
	first, last *timer
}

type timer struct {
	owner          *timers
	previous, next *timer
	// due is on the boottime clock if that is set, else on the monotonic one.
	due    time.Duration
	onBoot bool
	fire   func()
	// unset stops the timeline's event; nil when there is none.
	unset func()
	// over means that it was stopped or has fired.
	over bool
}

// after calls fire, unless the machine is paused then, when d has passed.
func (s *timers) after(d time.Duration, onBoot bool, fire func()) (stop func()) {
	if s.machine.off {
		return func() {}
	}
	mono, boot, _ := s.machine.oscillator.read(s.machine.now())
	t := &timer{owner: s, due: mono + max(d, 0), onBoot: onBoot, fire: fire}
	if onBoot {
		t.due = boot + max(d, 0)
	}
	if t.previous = s.last; s.last == nil {
		s.first = t
	} else {
		s.last.next = t
	}
	s.last = t
	t.set(max(d, 0))
	return t.stop
}

func (t *timer) set(left time.Duration) {
	o := &t.owner.machine.oscillator
	if t.onBoot && o.bootStands || !t.onBoot && o.monoStands {
		t.unset = nil
		return
	}
	t.unset = t.owner.machine.timeline.After(unscale(max(left, 0), o.rate), t.expired)
}

// expired lets it fire as soon as the machine is not paused.
func (t *timer) expired() {
	t.unlink()
	t.unset = nil
	if m := t.owner.machine; !m.Paused() && len(m.held) == 0 {
		t.over = true
		t.fire()
		return
	}
	t.owner.machine.admit(func() {
		if !t.over {
			t.over = true
			t.fire()
		}
	})
}

func (t *timer) stop() {
	if t.over {
		return
	}
	t.over = true
	t.unlink()
	if t.unset != nil {
		t.unset()
	}
}

// unlink takes it out of the list, if it is still in.
func (t *timer) unlink() {
	s := t.owner
	switch {
	case t.previous != nil:
		t.previous.next = t.next
	case s.first == t:
		s.first = t.next
	default:
		return // it was out
	}
	if t.next != nil {
		t.next.previous = t.previous
	} else {
		s.last = t.previous
	}
	t.previous, t.next = nil, nil
}

// arm sets all timers again, in the order in which they were set first.
func (s *timers) arm() {
	mono, boot, _ := s.machine.oscillator.read(s.machine.now())
	for t := s.first; t != nil; t = t.next {
		if t.unset != nil {
			t.unset()
		}
		if t.onBoot {
			t.set(t.due - boot)
		} else {
			t.set(t.due - mono)
		}
	}
}

// clear drops all timers.
func (s *timers) clear() {
	for t := s.first; t != nil; {
		next := t.next
		t.over = true
		if t.unset != nil {
			t.unset()
		}
		t.previous, t.next = nil, nil
		t = next
	}
	s.first, s.last = nil, nil
}
