package stepping_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/goleak"

	"github.com/errand-run/errand/cluster/host"
	"github.com/errand-run/errand/cluster/host/stepping"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// field is some schedulers with actors that do nothing but note who took a turn.
type field struct {
	schedulers []*stepping.Scheduler
	tops       [][]*host.Top
	hosts      []*host.Host
	turns      []string
}

// newField makes two actors on each of some nodes: a0, a1, b0, b1 and so on.
func newField(t *testing.T, nodes int) *field {
	t.Helper()
	f := &field{}
	order := &stepping.Order{}
	for n := range nodes {
		s := stepping.Among(order)
		h := host.New(host.Options{Clock: &stepping.Clock{}, Dispatcher: s, Mailbox: stepping.Mailbox, StrictSpawn: true})
		var tops []*host.Top
		for _, number := range []string{"0", "1"} {
			name := string(rune('a'+n)) + number
			top, err := h.Spawn(name, func() actor.Actor {
				return actor.ReceiveFunc(func(ctx actor.Context) {
					if _, ok := ctx.Message().(string); ok {
						f.turns = append(f.turns, name)
					}
				})
			})
			if err != nil {
				t.Fatal(err)
			}
			tops = append(tops, top)
		}
		s.Settle(1 << 10)
		f.schedulers, f.tops, f.hosts = append(f.schedulers, s), append(f.tops, tops), append(f.hosts, h)
	}
	return f
}

func (f *field) send(node, actor, times int) {
	for range times {
		f.hosts[node].System().Root.Send(f.tops[node][actor].PID, "turn")
	}
}

// run takes up to limit turns and returns who took them.
func (f *field) run(policy stepping.Policy, limit int) []string {
	f.turns = nil
	for range limit {
		if !stepping.Ready(f.schedulers) {
			break
		}
		s, turn := policy.Pick(f.schedulers)
		f.schedulers[s].StepAt(turn)
	}
	return f.turns
}

func random(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed)) }

func policies(seed uint64) map[string]stepping.Policy {
	return map[string]stepping.Policy{
		"first in, first out": stepping.FirstInFirstOut{},
		"uniform":             stepping.Uniform{Random: random(seed)},
		"starve":              stepping.Starve{Random: random(seed), Scheduler: 1},
		"priorities":          stepping.NewPriorities(random(seed), 5),
	}
}

func TestPoliciesTakeEveryTurnOnceAndTheSameForTheSameSeed(t *testing.T) {
	for seed := range uint64(5) {
		for name := range policies(seed) {
			var before []string
			for try := range 2 {
				f := newField(t, 3)
				draw := random(seed)
				for range 60 {
					f.send(draw.IntN(3), draw.IntN(2), 1)
				}
				got := slices.Clone(f.run(policies(seed)[name], 1000))
				if len(got) != 60 {
					t.Fatalf("%s took %d turns of 60", name, len(got))
				}
				if try > 0 && !slices.Equal(got, before) {
					t.Errorf("%s differs from itself with seed %d", name, seed)
				}
				before = got
			}
		}
	}
}

func TestPoliciesPassOverASchedulerThatMayNotRun(t *testing.T) {
	for name, policy := range policies(1) {
		f := newField(t, 3)
		for n := range 3 {
			f.send(n, 0, 3)
		}
		held := f.schedulers[0]
		f.schedulers[0] = nil
		if got := f.run(policy, 1000); len(got) != 6 || slices.Contains(got, "a0") {
			t.Errorf("%s took %q", name, got)
		}
		if held.Waiting() != 1 {
			t.Errorf("%s: %d turns wait where none may run", name, held.Waiting())
		}
	}
}

func TestFirstInFirstOutKeepsTheOrderAcrossNodes(t *testing.T) {
	f := newField(t, 3)
	want := []string{"c1", "a0", "b1", "b0", "a1"}
	for _, name := range want {
		f.send(int(name[0]-'a'), int(name[1]-'0'), 1)
	}
	if got := f.run(stepping.FirstInFirstOut{}, 10); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestUniformGivesEveryTurnTheSameChance(t *testing.T) {
	first := map[string]int{}
	policy := stepping.Uniform{Random: random(1)}
	const tries = 1200
	f := newField(t, 2)
	for range tries {
		f.send(0, 0, 1)
		f.send(0, 1, 1)
		f.send(1, 0, 1)
		first[f.run(policy, 3)[0]]++
	}
	for _, name := range []string{"a0", "a1", "b0"} {
		if n := first[name]; n < tries/3*8/10 || n > tries/3*12/10 {
			t.Errorf("%s came first %d times of %d", name, n, tries)
		}
	}
}

func TestStarveRunsOneNodeOnlyWhenNoOtherCan(t *testing.T) {
	f := newField(t, 3)
	for n := range 3 {
		f.send(n, 0, 5)
		f.send(n, 1, 5)
	}
	got := f.run(stepping.Starve{Random: random(1), Scheduler: 1}, 1000)
	if i := slices.IndexFunc(got, func(name string) bool { return name[0] == 'b' }); i != 20 || len(got) != 30 {
		t.Errorf("the starved node first runs after %d turns of %d: %q", i, len(got), got)
	}
}

// Without a change the same actor runs as long as it can; with changes others do.
func TestPrioritiesLetOneActorRunUntilItFalls(t *testing.T) {
	switches := func(every uint64) int {
		total := 0
		for seed := range uint64(10) {
			f := newField(t, 3)
			for n := range 3 {
				f.send(n, 0, 20)
				f.send(n, 1, 20)
			}
			got := f.run(stepping.NewPriorities(random(seed), every), 1000)
			for i := 1; i < len(got); i++ {
				if got[i] != got[i-1] {
					total++
				}
			}
		}
		return total
	}
	if got := switches(1 << 40); got != 10*5 {
		t.Errorf("%d switches between 6 actors in 10 runs without a change, want 5 in each", got)
	}
	if got := switches(10); got <= 10*6 {
		t.Errorf("%d switches in 10 runs with changes", got)
	}
}
