package shell

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/activation"
	"github.com/errand-run/errand/cluster/host"
	"github.com/errand-run/errand/cluster/records"
)

// The limits of one actor. To pass one is a fault of its machine: the turn panics
// and the supervisor restarts the actor.
const (
	// EffectsMax is how many effects one turn may return.
	EffectsMax = 1 << 20
	// TimersMax is how many named timers may run at a time.
	TimersMax = 1 << 18
	// FollowsMax is how many prefixes an actor may follow.
	FollowsMax = 64
)

// Ports are how machines reach the outside. Clock is required; the others may be
// nil as long as no machine asks for them.
type Ports struct {
	Clock  actors.Clock
	Store  actors.Store
	Router actors.Router
	Log    *zap.Logger
	// Perform carries out the effects of a kind's own. It reports false for one that
	// it does not know, which is a fault of the machine. It does not block; deliver
	// may be called from any goroutine, any number of times, also before Perform
	// returns, and each call is one input.
	Perform func(effect actors.Effect, deliver func(actors.Input)) (handled bool)
}

// Producer returns what activation.Directory.Register takes: the actors of a kind,
// each around a machine that newMachine makes at its start and at each restart.
func Producer(newMachine func(identity string) actors.Machine, ports Ports) func(identity string) actor.Producer {
	if ports.Log == nil {
		ports.Log = zap.NewNop()
	}
	shared := &ports
	return func(identity string) actor.Producer {
		life := &life{}
		return func() actor.Actor {
			life.incarnation++
			return &shell{machine: newMachine(identity), ports: shared, life: life, incarnation: life.incarnation}
		}
	}
}

// life is what outlives the restarts of one activation. Only its turns touch it.
type life struct {
	incarnation uint64
	// deliveries counts the messages from the directory, for Passivate.
	deliveries uint64
}

// shell is one incarnation of one actor.
type shell struct {
	machine     actors.Machine
	ports       *Ports
	life        *life
	incarnation uint64
	// timers are by name.
	timers map[string]timer
	// timerSets numbers the settings of timers.
	timerSets uint64
	follows   []follow
	// deliver is how a port hands an input back: one for all, of which very many may be
	// waiting.
	deliver func(actors.Input)
}

type timer struct {
	set  uint64
	stop func()
}

type follow struct {
	prefix string
	stop   func()
}

// result is an input on its way to the incarnation that asked for it.
type result struct {
	incarnation uint64
	input       actors.Input
}

// IgnoreDeadLetterLogging marks that one that comes too late is nothing to talk
// about.
func (*result) IgnoreDeadLetterLogging() {}

// About says in a trace of turns what has come.
func (r *result) About() string { return "its " + shortType(r.input) }

// shortType is the name of a value's type without its package.
func shortType(value any) string {
	name := fmt.Sprintf("%T", value)
	return name[strings.LastIndexByte(name, '.')+1:]
}

// fired is a timer's end on its way to the incarnation that set it.
type fired struct {
	incarnation uint64
	set         uint64
	name        string
}

// IgnoreDeadLetterLogging is as for result.
func (*fired) IgnoreDeadLetterLogging() {}

// About is as for result.
func (f *fired) About() string { return "its timer " + f.name }

// Receive takes one turn.
func (s *shell) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *result:
		if m.incarnation == s.incarnation {
			s.step(ctx, m.input)
		}
	case *fired:
		if m.incarnation == s.incarnation && s.endTimer(m.name, m.set) {
			s.step(ctx, actors.TimerFired{Name: m.name})
		}
	case *actor.Started:
		s.deliver = s.delivery(ctx)
		s.step(ctx, actors.Activated{})
	case *actor.Stopping, *actor.Restarting:
		s.end()
	case *actor.Stopped, *actor.Terminated:
	case proto.Message:
		s.life.deliveries++
		s.step(ctx, received(ctx, m))
	}
}

// received keeps From nil, not a nil pointer, when nobody waits.
func received(ctx actor.Context, message proto.Message) actors.Received {
	in := actors.Received{Message: message}
	if sender := ctx.Sender(); sender != nil {
		in.From = sender
	}
	return in
}

func (s *shell) step(ctx actor.Context, in actors.Input) {
	effects := s.machine.Step(s.ports.Clock.Now(), in)
	if len(effects) > EffectsMax {
		panic(fmt.Sprintf("shell: %d effects of one turn", len(effects)))
	}
	for _, effect := range effects {
		s.perform(ctx, effect)
	}
}

// perform carries one effect out.
func (s *shell) perform(ctx actor.Context, effect actors.Effect) {
	switch e := effect.(type) {
	case actors.Commit:
		deliver, tag := s.deliver, e.Tag
		s.ports.Store.Txn(e.Txn, func(r records.Result) { deliver(actors.Committed{Tag: tag, Result: r}) })
	case actors.Follow:
		s.follow(e.Prefix)
	case actors.SetTimer:
		s.setTimer(ctx, e.Name, e.After)
	case actors.Tell:
		s.tell(e)
	case actors.Answer:
		if to, ok := e.To.(*actor.PID); ok {
			ctx.Send(to, e.Message)
		}
	case actors.Passivate:
		if parent := ctx.Parent(); parent != nil {
			ctx.Request(parent, &activation.Passivate{Deliveries: s.life.deliveries})
		}
	case actors.Log:
		writeLine(s.ports.Log, ctx.Self().GetId(), e)
	default:
		if s.ports.Perform == nil || !s.ports.Perform(effect, s.deliver) {
			panic(fmt.Sprintf("shell: nobody carries out a %T", effect))
		}
	}
}

func (s *shell) tell(e actors.Tell) {
	if e.Node != "" {
		s.ports.Router.TellAt(e.Node, e.Kind, e.Identity, e.Message)
		return
	}
	s.ports.Router.TellPast(e.Past, e.Kind, e.Identity, e.Message)
}

// delivery returns how a port hands an input back to this incarnation.
func (s *shell) delivery(ctx actor.Context) func(actors.Input) {
	self, root, incarnation := ctx.Self(), ctx.ActorSystem().Root, s.incarnation
	return func(in actors.Input) { root.Send(self, &result{incarnation: incarnation, input: in}) }
}

// follow follows a prefix once, however often it is asked for.
func (s *shell) follow(prefix string) {
	if slices.ContainsFunc(s.follows, func(f follow) bool { return f.prefix == prefix }) {
		return
	}
	if len(s.follows) >= FollowsMax {
		panic(fmt.Sprintf("shell: more than %d prefixes followed", FollowsMax))
	}
	deliver := s.deliver
	stop := s.ports.Store.Follow(prefix, func(b records.Batch) { deliver(actors.Followed{Prefix: prefix, Batch: b}) })
	s.follows = append(s.follows, follow{prefix: prefix, stop: stop})
}

// setTimer sets a timer in place of the one of its name. A negative delay only
// stops that.
func (s *shell) setTimer(ctx actor.Context, name string, after time.Duration) {
	old, found := s.timers[name]
	if found {
		old.stop()
	}
	if after < 0 {
		delete(s.timers, name)
		return
	}
	if !found && len(s.timers) >= TimersMax {
		panic(fmt.Sprintf("shell: more than %d timers", TimersMax))
	}
	if s.timers == nil {
		s.timers = map[string]timer{}
	}
	s.timerSets++
	end := &fired{incarnation: s.incarnation, set: s.timerSets, name: name}
	self, root := ctx.Self(), ctx.ActorSystem().Root
	s.timers[name] = timer{set: s.timerSets, stop: s.ports.Clock.After(after, func() { root.Send(self, end) })}
}

// endTimer forgets a timer that has fired. It reports false for one that was set
// again or stopped since.
func (s *shell) endTimer(name string, set uint64) bool {
	if t, found := s.timers[name]; !found || t.set != set {
		return false
	}
	delete(s.timers, name)
	return true
}

// end stops what would deliver to this incarnation.
func (s *shell) end() {
	for _, name := range slices.Sorted(maps.Keys(s.timers)) {
		s.timers[name].stop()
	}
	for _, f := range s.follows {
		f.stop()
	}
	s.timers, s.follows = nil, nil
}

// HostClock is the clock of a host over the clock of the actors, so that both run
// on the same time.
func HostClock(clock actors.Clock) host.Clock { return hostClock{clock} }

type hostClock struct{ clock actors.Clock }

func (c hostClock) Now() time.Duration { return c.clock.Now().Mono }

func (c hostClock) After(d time.Duration, deliver func()) (stop func()) {
	return c.clock.After(d, deliver)
}
