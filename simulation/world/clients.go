package world

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/plan"
	"github.com/errand-run/errand/simulation/virtual"
)

// What the API and its clients do; the bounds are those of package api.
const (
	clientTimeout   = time.Minute
	cancelTimeout   = 15 * time.Second
	createTriesMax  = 4
	createRetryWait = 200 * time.Millisecond
	firstWakeMs     = 250
)

// The outcomes of a call.
const (
	outcomeOK      = "ok"
	outcomeRefused = "refused"
	outcomeUnknown = "unknown"
)

// asker is what a router is besides: it asks without waiting.
type asker interface {
	AskRepeatedlyThen(kind, identity string, message proto.Message, wait time.Duration, then func(proto.Message, error)) (drop func())
}

// clients make the calls of the plan, each through the API of one node.
type clients struct {
	world *World
	// runs are the ids of the runs, by label.
	runs map[string]string
	open int
	last uint64
	// probes are the runs that the healed core is asked for.
	probes []*probe
}

// call is one call under way.
type call struct {
	world *World
	plan.Call
	id       uint64
	run      string
	daemon   *daemon
	answered bool
	stop     func()
	// then is told the answer; it may be nil.
	then func(outcome, text string)
}

func (c *clients) init(w *World) {
	c.world, c.runs = w, runIDs(w.plan)
	for _, planned := range w.plan.Workload {
		w.timeline.After(planned.At.D(), func() { c.begin(planned) })
		c.open++
	}
}

// runIDs are the ids of a plan's runs, by label.
func runIDs(p plan.Plan) map[string]string {
	ids := map[string]string{}
	random := virtual.Streams{Seed: p.Seed}.Of("clients")
	for _, planned := range p.Workload {
		if planned.Verb == plan.VerbSubmit && ids[planned.Label] == "" {
			ids[planned.Label] = runID(planned, random)
		}
	}
	return ids
}

// Pin returns a plan in which each submit says the id of its run. It makes the same
// world, and goes on to name its runs so when some of its calls are taken away; drawn
// ids would move on from one run to the next.
func Pin(p plan.Plan) plan.Plan {
	ids := runIDs(p)
	p.Workload = slices.Clone(p.Workload)
	for i, c := range p.Workload {
		if c.Verb == plan.VerbSubmit && c.Key == "" {
			p.Workload[i].Run = ids[c.Label]
		}
	}
	return p
}

// runID is the id that the API gives a run: drawn, unless a key says it.
func runID(c plan.Call, random *rand.Rand) string {
	app := c.App
	if app == "" {
		app = records.DefaultApp
	}
	if c.Key != "" {
		return records.RunIDFromKey(app, c.Key)
	}
	if c.Run != "" {
		return c.Run
	}
	var b [16]byte
	ids{random}.Fill(b[:])
	return records.RunIDFromRandom(app, b)
}

// begin makes a call: the request travels to the node and waits there while the
// machine is paused.
func (c *clients) begin(planned plan.Call) { c.beginThen(planned, nil) }

// beginThen makes a call and goes on with its answer.
func (c *clients) beginThen(planned plan.Call, then func(outcome, text string)) {
	w := c.world
	c.last++
	a := &call{world: w, Call: planned, id: c.last, run: c.runs[planned.Label], then: then}
	w.history.Add(history.Event{
		Step: w.steps, At: w.timeline.Now(), Kind: history.KindCall, Node: planned.Node, Run: a.run,
		Text: planned.Verb + " " + planned.Label, Detail: a.detail("", planned),
	})
	a.stop = w.timeline.After(clientTimeout, func() { a.answer(outcomeUnknown, nil, "the client waits no longer") })
	s := w.seats[planned.Node]
	if s == nil || s.daemon == nil || s.daemon.stopping || s.daemon.assembled.Status().Session == 0 {
		a.answer(outcomeRefused, records.ClassUnavailable, "nobody listens")
		return
	}
	if a.run == "" && a.Verb != plan.VerbContend {
		a.answer(outcomeRefused, records.ClassNotFound, "the label was never submitted")
		return
	}
	a.daemon = s.daemon
	a.daemon.life.Deliver(a.carryOut)
}

func (a *call) detail(outcome string, detail any) history.Call {
	return history.Call{ID: a.id, Verb: a.Verb, Run: a.run, Key: a.Key, Outcome: outcome, Detail: detail}
}

// answer ends the call, once.
func (a *call) answer(outcome string, detail any, text string) {
	if a.answered {
		return
	}
	a.answered = true
	a.stop()
	w := a.world
	w.clients.open--
	w.history.Add(history.Event{
		Step: w.steps, At: w.timeline.Now(), Kind: history.KindAnswer, Node: a.Node, Run: a.run,
		Text: fmt.Sprintf("%s %s: %s: %s", a.Verb, a.Label, outcome, text), Detail: a.detail(outcome, detail),
	})
	if a.then != nil {
		a.then(outcome, text)
	}
}

// fail ends the call with what an error says of it.
func (a *call) fail(err error) {
	if class := records.ClassOf(err); class != records.ClassOutcomeUnknown {
		a.answer(outcomeRefused, class, err.Error())
		return
	}
	a.answer(outcomeUnknown, nil, err.Error())
}

func (a *call) carryOut() {
	switch a.Verb {
	case plan.VerbSubmit:
		run := a.record()
		a.submit(run, a.world.keys.Create(run, run.GetCreatedAt()+firstWakeMs), 1)
	case plan.VerbCancel:
		a.read(func(run *recordv1.Run) {
			if run == nil {
				a.answer(outcomeRefused, records.ClassNotFound, "no such run")
				return
			}
			a.cancel()
		})
	case plan.VerbDelete:
		a.remove(1)
	case plan.VerbContend:
		a.contend()
	default:
		a.read(func(run *recordv1.Run) { a.answer(outcomeOK, run, "read") })
	}
}

// record is the record of a submit, as the API makes it of a request that leaves
// all else to the defaults.
func (a *call) record() *recordv1.Run {
	c, now := a.Command, a.daemon.life.Clock().Now().Milli()
	body, err := json.Marshal(c)
	if err != nil {
		panic(fmt.Sprintf("world: encode a command: %v", err))
	}
	sum := sha256.Sum256(append(body, a.App...))
	app, err := records.AppOfRun(a.run)
	if err != nil {
		panic(fmt.Sprintf("world: %v", err))
	}
	return &recordv1.Run{
		Id: a.run, App: app, Trigger: recordv1.Trigger_TRIGGER_API, RequestHash: sum[:],
		Status: recordv1.Status_STATUS_PENDING, CreatedAt: now, QueuedAt: now, Attempt: 1, MinWriter: records.MinWriter(&recordv1.Spec{Retry: retryOf(a.Command.Retry)}),
		Spec: &recordv1.Spec{
			Driver: Driver, Image: c.Image, Command: program(c).Command(), CpuMillis: 100, MemoryBytes: 16 << 20,
			TimeoutMs: c.Timeout.D().Milliseconds(), StartDeadlineMs: c.StartDeadline.D().Milliseconds(), StopGraceMs: c.StopGrace.D().Milliseconds(),
			Retry: retryOf(c.Retry),
		},
	}
}

// submit sends the transaction, again while nobody knows what became of it.
func (a *call) submit(run *recordv1.Run, txn records.Txn, try int) {
	a.daemon.calls.Txn(txn, func(result records.Result) {
		if result.Err != nil {
			switch {
			case try == 1 && records.ClassOf(result.Err) != records.ClassOutcomeUnknown:
				a.fail(result.Err)
			case try < createTriesMax:
				a.daemon.life.Clock().After(createRetryWait, func() { a.submit(run, txn, try+1) })
			default:
				a.answer(outcomeUnknown, nil, result.Err.Error())
			}
			return
		}
		if !result.Succeeded {
			kv, ok := result.First(0)
			if !ok {
				a.answer(outcomeRefused, records.ClassInvalid, "the run of this key was deleted")
				return
			}
			found, err := records.DecodeRun(kv)
			if err != nil {
				a.fail(err)
				return
			}
			if !bytes.Equal(found.GetRequestHash(), run.GetRequestHash()) {
				a.answer(outcomeRefused, records.ClassConflict, "the key was used for another request")
				return
			}
			run = found
		}
		if run.GetStatus() == recordv1.Status_STATUS_PENDING {
			wake := &actorv1.Wake{Run: a.run}
			if result.Succeeded {
				wake.Record, wake.Revision = records.Encode(run), result.Revision
			}
			a.daemon.assembled.Router().Tell(actors.KindRun, a.run, wake)
		}
		a.answer(outcomeOK, run, "is there")
	})
}

// read reads the run's record; nil is given for one that does not exist.
func (a *call) read(then func(*recordv1.Run)) {
	a.readAt(func(run *recordv1.Run, _ int64) { then(run) })
}

// readAt is read, with the revision at which the record was last written.
func (a *call) readAt(then func(run *recordv1.Run, mod int64)) {
	a.daemon.calls.Txn(records.Read(records.Get(a.world.keys.Run(a.run))), func(result records.Result) {
		if result.Err != nil {
			// A read has done nothing, whatever became of it.
			a.answer(outcomeRefused, records.ClassUnavailable, result.Err.Error())
			return
		}
		kv, ok := result.First(0)
		if !ok {
			then(nil, 0)
			return
		}
		run, err := records.DecodeRun(kv)
		if err != nil {
			a.fail(err)
			return
		}
		then(run, kv.Mod)
	})
}

// cancel asks the run's actor to record the wish.
func (a *call) cancel() {
	router, ok := a.daemon.assembled.Router().(asker)
	if !ok {
		panic("world: the node's router can not ask without waiting")
	}
	message := &actorv1.Cancel{Run: a.run, By: "client", Force: a.Force}
	var over bool
	var stop func()
	drop := router.AskRepeatedlyThen(actors.KindRun, a.run, message, cancelTimeout, func(answer proto.Message, err error) {
		over = true
		if stop != nil {
			stop()
		}
		a.canceled(answer, err)
	})
	if over {
		return
	}
	stop = a.daemon.life.Clock().After(cancelTimeout, func() {
		drop()
		a.answer(outcomeUnknown, nil, "the actor did not answer")
	})
}

func (a *call) canceled(answer proto.Message, err error) {
	if err != nil {
		a.answer(outcomeUnknown, nil, err.Error())
		return
	}
	canceled, ok := answer.(*actorv1.Canceled)
	if !ok {
		a.answer(outcomeUnknown, nil, fmt.Sprintf("the actor answered a %T", answer))
		return
	}
	switch canceled.GetOutcome() {
	case actorv1.Canceled_OUTCOME_RECORDED:
		a.answer(outcomeOK, nil, "the wish is recorded")
	case actorv1.Canceled_OUTCOME_TERMINAL:
		a.answer(outcomeRefused, records.ClassInvalid, "the run has ended already")
	case actorv1.Canceled_OUTCOME_NOT_FOUND:
		a.answer(outcomeRefused, records.ClassNotFound, "no such run")
	default:
		a.answer(outcomeUnknown, nil, canceled.GetOutcome().String())
	}
}
