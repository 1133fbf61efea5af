package check_test

import (
	"testing"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/simulation/check"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// register opens a session of n1, which takes back what was said of it.
func (s *script) register() {
	s.commit(keys.Register("n1", &recordv1.NodeSession{Uuid: "u1"}, 0, 0, &recordv1.NodeInfo{Uuid: "u1"}).Then...)
}

func (s *script) loseSession() {
	s.commit(records.Op{Kind: records.OpDelete, Key: keys.Node("n1")})
}

// sayDead says of n1 that it is dead.
func (s *script) sayDead() {
	s.commit(keys.Remove("n1", 0, &recordv1.NodeInfo{Uuid: "u1", Removed: &recordv1.Removal{At: 5, By: "alice"}}).Then...)
}

// giveUp ends the run as one that was lost with its node, by a word.
func (s *script) giveUp() {
	s.finish(one, recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_NODE_LOST, nil, func(run *recordv1.Run) {
		last := run.GetAttempts()[len(run.GetAttempts())-1]
		last.SafeAt, last.SafeBy, last.SafeWordBy = 5, recordv1.SafeBy_SAFE_BY_WORD, "alice"
	})
}

// A word ends what waits for a dead node, though the node be alive, until it is heard of
// again: that and no more.
func TestWordExcusesOnlyWhatItIsFor(t *testing.T) {
	for _, c := range []struct {
		name, text string
		broken     check.Guarantee
		retry      *recordv1.Retry
		session    int64
		play       func(s *script)
	}{
		{"the node is dead", "", "", onWait, 0, func(s *script) {
			s.exit(one, "n1", 1, 1, 137, "power")
			s.loseSession()
			s.sayDead()
			s.giveUp()
		}},
		{"the node lives, and comes back empty", "", "", onWait, 0, func(s *script) {
			s.loseSession()
			s.sayDead()
			s.giveUp()
			s.exit(one, "n1", 1, 1, 137, "kill")
			s.register()
		}},
		{"the node comes back, empty, before the run's end is written", "", "", onWait, 0, func(s *script) {
			s.loseSession()
			s.sayDead()
			s.exit(one, "n1", 1, 1, 137, "kill")
			s.register()
			s.giveUp()
		}},
		{"the node hears of it, and ends all that it has behind its fence", "", "", onWait, 0, func(s *script) {
			s.loseSession()
			s.sayDead()
			s.giveUp()
			s.exit(one, "n1", 1, 1, 137, "fence")
			s.register()
		}},
		{"the node comes back with it", "has a session again", check.G4, onWait, 0, func(s *script) {
			s.loseSession()
			s.sayDead()
			s.giveUp()
			s.register()
		}},
		{"it runs at its end, behind the node's return", "still runs", check.G4, onWait, 0, func(s *script) {
			s.loseSession()
			s.sayDead()
			s.register()
			s.giveUp()
		}},
		{"it does not wait", "still runs", check.G4, nil, 0, func(s *script) {
			s.loseSession()
			s.sayDead()
			s.giveUp()
		}},
		{"nobody has said it", "is NODE_LOST", check.Attempts, onWait, 0, func(s *script) {
			s.exit(one, "n1", 1, 1, 137, "power")
			s.loseSession()
			s.giveUp()
		}},
		{"it was said before this session", "is NODE_LOST", check.Attempts, onWait, 1000, func(s *script) {
			s.exit(one, "n1", 1, 1, 137, "power")
			s.loseSession()
			s.sayDead()
			s.giveUp()
		}},
		{"it is said of a node with a session", "is said to be dead and has a session", check.Attempts, onWait, 0, func(s *script) {
			s.sayDead()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScript()
			s.session = c.session
			s.register()
			s.createToRetry(one, c.retry)
			s.place(one, "n1")
			s.start(one, "n1", 1, 1)
			s.running(one)
			expect(t, s.set.Violations(), "", "")
			c.play(s)
			expect(t, s.set.Violations(), c.broken, c.text)
		})
	}
}

// What waits for a machine that stays broken does so for good, unless it was said to be
// dead.
func TestRunOfANodeThatWasSaidToBeDeadMustEnd(t *testing.T) {
	s := newScript()
	s.register()
	s.createToRetry(one, onWait)
	s.place(one, "n1")
	broken := func(string) bool { return true }
	s.loseSession()
	if n := s.set.LiveRuns(broken); n != 0 {
		t.Errorf("%d runs are waited for", n)
	}
	s.sayDead()
	if n := s.set.LiveRuns(broken); n != 1 {
		t.Errorf("%d runs are waited for after the word", n)
	}
}
