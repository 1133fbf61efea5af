package check

import (
	"time"

	"github.com/errand-run/errand/simulation/history"
)

// Set is all checkers of one world. It belongs to one goroutine.
type Set struct {
	ledger     *Ledger
	checkers   []Checker
	violations []Violation
	seen       map[seenKey]bool
	step       uint64
	at         time.Duration
}

type seenKey struct {
	guarantee Guarantee
	run, node string
	outside   bool
}

// New makes the checkers of a world; Observe belongs behind its history.
func New(config Config) *Set {
	if config.Slack == 0 {
		config.Slack = SlackDefault
	}
	s := &Set{ledger: newLedger(config), seen: map[seenKey]bool{}}
	s.checkers = []Checker{
		g1OneWriter{},
		g2OneStart{},
		g3NoTwoAtOnce{},
		g4TerminalMeansGone{},
		g7NoInventedOutcome{},
		&g7Dates{},
		&g8NothingLost{asked: map[uint64]time.Duration{}},
		g9Bounded{},
		&g9NotEarly{nodes: config.Nodes},
		g10Clean{},
		g11Explained{},
		g12FencingToken{},
		room{},
		attempts{refused: map[string]refusal{}},
		unfenced{},
		newLinearizable(),
		newTogether(),
	}
	if config.Canary {
		s.checkers = append(s.checkers, canary{})
	}
	s.checkers = append(s.checkers, config.More...)
	return s
}

// Observe takes the next event of the history.
func (s *Set) Observe(e history.Event) {
	s.step, s.at = e.Step, e.At
	switch e.Kind {
	case history.KindSandbox:
		if e.Detail == nil {
			return
		}
	case history.KindCommand, history.KindCommit, history.KindRestore, history.KindCall, history.KindAnswer, history.KindFault, history.KindDaemon, history.KindMachine:
	default:
		return
	}
	s.ledger.apply(e)
	for _, checker := range s.checkers {
		checker.Observe(s.ledger, e, s.reporter(checker))
	}
}

// Step tells the moment of the world's next turn, so that what no event announces is
// dated rightly. It does nothing else.
func (s *Set) Step(step uint64, at time.Duration) { s.step, s.at, s.ledger.now = step, at, at }

// Expensive lets the checkers look around that can not tell by events alone: for
// what did not happen in time. Its cost is in proportion to the live runs.
func (s *Set) Expensive() {
	for _, checker := range s.checkers {
		if periodic, ok := checker.(Periodic); ok {
			periodic.Expensive(s.ledger, s.reporter(checker))
		}
	}
}

// Finish judges the end of the world and returns all that was found, that outside
// the model included.
func (s *Set) Finish(facts Facts) []Violation {
	s.Step(max(s.step, facts.Step), max(s.at, facts.At))
	s.Expensive()
	for _, checker := range s.checkers {
		if final, ok := checker.(Final); ok {
			final.Finish(s.ledger, facts, s.reporter(checker))
		}
	}
	if facts.Settled {
		for _, p := range s.Pending(facts) {
			s.add(Liveness, Finding{Run: p.Run, Node: p.Node, Text: p.text()})
		}
	}
	return s.Violations()
}

// Violations returns what was found so far, in order.
func (s *Set) Violations() []Violation { return s.violations }

// Failed tells whether a guarantee was violated inside the model.
func (s *Set) Failed() bool {
	for _, v := range s.violations {
		if v.Outside == "" {
			return true
		}
	}
	return false
}

// Ledger is what the checkers know of the world; it must only be read.
func (s *Set) Ledger() *Ledger { return s.ledger }

func (s *Set) reporter(checker Checker) func(Finding) {
	return func(f Finding) { s.add(checker.Guarantee(), f) }
}

// add keeps the first finding of its kind: what is wrong once is often wrong at
// every step after.
func (s *Set) add(guarantee Guarantee, f Finding) {
	if s.ledger.raw && f.Outside == "" && guarantee != Canary {
		f.Outside = "the store was replaced by an older copy without the procedure of a restore"
	}
	key := seenKey{guarantee, f.Run, f.Node, f.Outside != ""}
	if s.seen[key] {
		return
	}
	s.seen[key] = true
	s.violations = append(s.violations, Violation{
		Guarantee: guarantee, Run: f.Run, Node: f.Node, Step: s.step, At: s.at, Text: f.Text, Outside: f.Outside,
	})
}

// canary fails at the first commit.
type canary struct{}

func (canary) Guarantee() Guarantee { return Canary }

func (canary) Observe(_ *Ledger, e history.Event, report func(Finding)) {
	if e.Kind == history.KindCommit {
		report(Finding{Text: "the canary was asked for"})
	}
}
