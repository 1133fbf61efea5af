package check_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/check"
)

// A disk that loses what it has synced is outside of what a journal can do. Inside is
// all that was started after it.
func TestADiskThatLiesIsOutsideForG2(t *testing.T) {
	const lies = "disk undoes its last write"
	for _, c := range []struct {
		name    string
		play    func(s *script)
		outside bool
	}{
		{"a disk that holds", func(s *script) {
			s.ran(one, "n1")
			s.exit(one, "n1", 1, 1, 0, "itself")
			s.start(one, "n1", 1, 1)
		}, false},
		{"a disk that loses the start", func(s *script) {
			s.ran(one, "n1")
			s.machine("n1", lies)
			s.exit(one, "n1", 1, 1, 0, "itself")
			s.start(one, "n1", 1, 1)
		}, true},
		{"a disk that had lost something before", func(s *script) {
			s.machine("n1", lies)
			s.ran(one, "n1")
			s.exit(one, "n1", 1, 1, 0, "itself")
			s.start(one, "n1", 1, 1)
		}, false},
		{"another machine's disk", func(s *script) {
			s.ran(one, "n1")
			s.machine("n2", lies)
			s.exit(one, "n1", 1, 1, 0, "itself")
			s.start(one, "n1", 1, 1)
		}, false},
		{"a start that is recorded as never started and was lost by the disk", func(s *script) {
			s.create(one)
			s.place(one, "n1")
			s.start(one, "n1", 1, 1)
			s.machine("n1", lies)
			s.exit(one, "n1", 1, 1, 0, "reboot")
			s.void(one)
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScript()
			c.play(s)
			found := s.set.Violations()
			if len(found) != 1 || found[0].Guarantee != check.G2 || (found[0].Outside != "") != c.outside || s.set.Failed() == c.outside {
				t.Errorf("outside should be %v: %v", c.outside, found)
			}
		})
	}
}

// A bound counts from the call that asked for the run, however long the store took to
// create it; of a name that is used again, from the call that did so.
func TestBoundsCountFromTheCall(t *testing.T) {
	late := func(s *script, before, after time.Duration) {
		s.calls(check.VerbSubmit, one)
		s.wait(before)
		s.create(one)
		s.wait(after)
		s.finish(one, failed, startDeadline, nil)
	}
	judgePairs(t, []pair{
		{
			"a record that came long after the call", check.G9, "start deadline of 5m0s after",
			func(s *script) { late(s, 4*time.Minute, time.Minute) },
			func(s *script) { late(s, time.Minute, time.Minute) },
		},
		{
			"a name that is used again", check.G9, "start deadline of 5m0s after",
			func(s *script) {
				s.calls(check.VerbSubmit, one)
				s.whole(one, "n1")
				s.remove(one)
				s.commit(records.Op{Kind: records.OpDelete, Key: keys.Gone(one)})
				late(s, 4*time.Minute, time.Minute)
			},
			func(s *script) {
				s.calls(check.VerbSubmit, one)
				s.whole(one, "n1")
				s.remove(one)
				s.commit(records.Op{Kind: records.OpDelete, Key: keys.Gone(one)})
				s.wait(10 * time.Minute)
				late(s, 0, time.Minute)
			},
		},
	})
}

// Whatever befalls the world, a node stops no command before its timeout has passed; a
// wall clock that was wrong meanwhile may have.
func TestCommandsAreNotStoppedBeforeTheirTimeout(t *testing.T) {
	stopped := func(s *script, after time.Duration) {
		s.fault("n1", "pause", true, false)
		s.fault("n1", "pause", false, false)
		s.ran(one, "n1")
		s.wait(after)
		s.exit(one, "n1", 1, 1, 143, "signal")
		s.finish(one, recordv1.Status_STATUS_TIMED_OUT, recordv1.Reason_REASON_TIMEOUT, proto.Int32(143))
	}
	const want = "was stopped by its timeout of 1m0s after"
	judgePairs(t, []pair{
		{"a timeout that has passed", check.G9, want, func(s *script) { stopped(s, time.Minute) }, func(s *script) { stopped(s, 40*time.Second) }},
		{
			"a clock that was set while it ran", check.G9, want,
			func(s *script) { s.fault("n2", "wall_step", true, false); stopped(s, 40*time.Second) },
			func(s *script) {
				s.fault("n2", "wall_step", true, false)
				s.fault("n2", "wall_step", false, false)
				stopped(s, 40*time.Second)
			},
		},
		{
			"a clock that has drifted", check.G9, want,
			func(s *script) {
				s.fault("n2", "drift", true, false)
				stopped(s, 40*time.Second)
			},
			func(s *script) { stopped(s, 40*time.Second) },
		},
	})
}

// Where all clocks are right a start is dated as it was.
func TestStartsAreDatedAsTheyWere(t *testing.T) {
	const epoch = 1_767_603_600_000
	for _, c := range []struct {
		name      string
		guarantee check.Guarantee
		play      func(s *script)
		late      time.Duration
	}{
		{"at the start", "", func(*script) {}, 0},
		{"when it was heard of", check.G7, func(*script) {}, 20 * time.Second},
		{"by a clock that was wrong once", "", func(s *script) { s.fault("n2", "wall_step", true, false); s.fault("n2", "wall_step", false, false) }, 20 * time.Second},
		{"by a machine that stood still without counting", "", func(s *script) { s.machine("n1", "frozen"); s.machine("n1", "resumed") }, 20 * time.Second},
		{"of a command that was out of sight", "", func(s *script) { s.fault("n1", "reboot", true, false) }, 20 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScript(func(c *check.Config) { c.Epoch = epoch })
			s.create(one)
			s.place(one, "n1")
			c.play(s)
			s.start(one, "n1", 1, 1)
			at := epoch + (s.now + c.late).Milliseconds()
			s.wait(c.late)
			s.update(one, func(run *recordv1.Run) {
				run.Status, run.StartedAt = recordv1.Status_STATUS_RUNNING, at
				run.Attempts[0].StartedAt = at
			})
			expect(t, s.set.Violations(), c.guarantee, "")
		})
	}
}

// A node runs no more at a time than it is configured to.
func TestRulesOfRoom(t *testing.T) {
	both := func(s *script, between func(s *script)) {
		s.ran(one, "n1")
		between(s)
		s.ran(two, "n1")
	}
	for _, c := range []struct {
		name      string
		guarantee check.Guarantee
		play      func(s *script)
	}{
		{"one after the other", "", func(s *script) { both(s, func(s *script) { s.exit(one, "n1", 1, 1, 0, "itself") }) }},
		{"one on each of two nodes", "", func(s *script) { s.ran(one, "n1"); s.ran(two, "n2") }},
		{"two at a time", check.Room, func(s *script) { both(s, func(*script) {}) }},
		{"two at a time where a journal was lost", "", func(s *script) { both(s, func(s *script) { s.fault("n1", "disk_revert", true, false) }) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScript(func(c *check.Config) { c.SandboxesMax = 1 })
			c.play(s)
			expect(t, s.set.Violations(), c.guarantee, "")
		})
	}
}

func TestRulesOfG11AndG12(t *testing.T) {
	judgePairs(t, []pair{
		{
			"a failure has words", check.G11, "without a message",
			func(s *script) { s.create(one); s.finish(one, canceled, askedToEnd, nil) },
			func(s *script) {
				s.create(one)
				s.finish(one, canceled, askedToEnd, nil, func(run *recordv1.Run) { run.Message = "" })
			},
		},
		{
			"an end is not before the start", check.G11, "ended before it was",
			func(s *script) { s.whole(one, "n1") },
			func(s *script) {
				s.ran(one, "n1")
				s.exit(one, "n1", 1, 1, 0, "itself")
				s.finish(one, succeeded, 0, proto.Int32(0), func(run *recordv1.Run) { run.EndedAt = 1 })
			},
		},
		{
			"a second start of one placement carries its token, which is G2's matter", check.G12, "not above",
			func(s *script) {
				s.ranToRetry(one, "n1")
				s.exit(one, "n1", 1, 1, 0, "fence")
				s.retry(one)
				s.place(one, "n2")
				s.start(one, "n2", 2, 1)
			},
			func(s *script) {
				s.ranToRetry(one, "n1")
				s.exit(one, "n1", 1, 1, 0, "fence")
				s.retry(one)
				s.token = s.tokens[grant{one, 1, 1}]
				s.place(one, "n2")
				s.start(one, "n2", 2, 1)
			},
		},
	})
}

// A start that stood still with its machine, while the run went on elsewhere, carries the
// token of its placement, which is what it can be kept out by. A later placement's must be
// above all.
func TestTokenOfAStartThatComesLateIsBelowThoseOfLaterPlacements(t *testing.T) {
	for _, c := range []struct {
		name  string
		late  grant
		token func(s *script) uint64
		want  bool
	}{
		{"of the earlier placement, its own", grant{one, 1, 1}, func(s *script) uint64 { return s.tokens[grant{one, 1, 1}] }, false},
		{"of the earlier placement, that of the later", grant{one, 1, 1}, func(s *script) uint64 { return s.tokens[grant{one, 2, 1}] }, true},
		{"of the later placement, that of the earlier", grant{one, 2, 1}, func(s *script) uint64 { return s.tokens[grant{one, 1, 1}] }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScript()
			s.createToRetry(one, &recordv1.Retry{Retries: 1})
			s.place(one, "n1")
			if c.late.attempt == 2 {
				s.start(one, "n1", 1, 1)
			}
			s.retry(one)
			s.place(one, "n2")
			if c.late.attempt == 1 {
				s.start(one, "n2", 2, 1)
			}
			s.token = c.token(s)
			s.start(one, map[int32]string{1: "n1", 2: "n2"}[c.late.attempt], c.late.attempt, 1)
			found := slices.ContainsFunc(s.set.Violations(), func(v check.Violation) bool { return v.Guarantee == check.G12 })
			if found != c.want {
				t.Errorf("found: %v, want %v", s.set.Violations(), c.want)
			}
		})
	}
}

// Keys that are left of a run without a record, and commands that outlive their run,
// are found at the end as well.
func TestWhatIsLeftOfARunThatIsGoneIsFound(t *testing.T) {
	s := newScript()
	s.whole(one, "n1")
	s.remove(one)
	s.commit(records.Op{Kind: records.OpPut, Key: keys.Live(one), Value: records.Encode(&recordv1.Live{})})
	found := map[check.Guarantee]bool{}
	for _, v := range s.set.Finish(s.settled(ready("n1"))) {
		found[v.Guarantee] = true
	}
	if !found[check.G1] || !found[check.G10] {
		t.Errorf("%v", found)
	}
	s = newScript()
	s.ran(one, "n1")
	s.finish(one, failed, nodeLost, nil)
	found = map[check.Guarantee]bool{}
	for _, v := range s.set.Finish(s.settled(ready("n1"))) {
		found[v.Guarantee] = true
	}
	if !found[check.G4] || !found[check.Liveness] {
		t.Errorf("%v", found)
	}
}
