package plan

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// smallIDs is how many idempotency keys half of the keyed submits share.
const smallIDs = 6

// crowdsMax is how many crowds there are at most.
const crowdsMax = 4

// beforeMoment is how long before a moment the runs begin that are to meet its faults:
// time enough to be placed and to run, or to be on the way there.
const beforeMoment = 30 * time.Second

func drawWorkload(r *rand.Rand, o Options, f focus) []Call {
	var calls []Call
	runs := 0
	submit := func(at time.Duration) {
		runs++
		calls = append(calls, drawRun(r, o, at, fmt.Sprintf("w%d", runs))...)
	}
	most := min(3+o.Length.D().Minutes()*pick(r, 0.5, 2, 6), 150)
	for float64(runs) < most {
		at := f.moment(r, o, beforeMoment)
		if chance(r, 0.1) {
			at = between(r, 0, startMargin)
		}
		burst := 1
		if chance(r, 0.15) {
			burst = 2 + r.IntN(12)
		}
		for range burst {
			submit(at)
			at += between(r, 0, pick(r, time.Millisecond, 100*time.Millisecond, 2*time.Second))
		}
	}
	calls = append(calls, drawCrowds(r, o)...)
	slices.SortStableFunc(calls, func(a, b Call) int { return cmp.Compare(a.At, b.At) })
	return calls
}

// drawCrowds draws moments at which many want something through one node at once, some
// of them the same: what the node then asks of the store leaves together.
func drawCrowds(r *rand.Rand, o Options) (calls []Call) {
	for crowd := 0; crowd < crowdsMax && chance(r, 0.6); crowd++ {
		at, node := Duration(between(r, 0, o.Length.D()).Round(time.Millisecond)), NodeName(r.IntN(o.Nodes))
		for i := range 2 + r.IntN(10) {
			label := fmt.Sprintf("c%d-%d", crowd, i)
			first := Call{At: at, Verb: VerbSubmit, Node: node, Label: label, App: "crowd", Command: drawCommand(r)}
			first.Command.Takes = Duration(between(r, 0, 3*time.Second).Round(time.Millisecond))
			if chance(r, 0.5) {
				first.Key = fmt.Sprintf("crowd-%d-%d", crowd, r.IntN(3))
			}
			calls = append(calls, first)
			if chance(r, 0.4) {
				calls = append(calls, Call{
					At: at + Duration(between(r, 0, pick(r, 5*time.Millisecond, 300*time.Millisecond)).Round(time.Millisecond)), Verb: VerbCancel, Node: node, Label: label,
				})
			}
		}
		calls = append(calls, Call{At: at, Verb: VerbContend, Node: node, Label: fmt.Sprintf("c%d", crowd)})
	}
	return calls
}

// drawRun draws a run's submit and all that clients do to it later.
func drawRun(r *rand.Rand, o Options, at time.Duration, label string) []Call {
	node := func() string { return NodeName(r.IntN(o.Nodes)) }
	first := Call{
		At: Duration(at.Round(time.Millisecond)), Verb: VerbSubmit, Node: node(), Label: label,
		App: pick(r, "default", "shop", "a", "a-b"), Command: drawCommand(r),
	}
	if chance(r, 0.6) {
		if first.Key = "key-" + label; chance(r, 0.5) {
			first.Key = fmt.Sprintf("small-%d", r.IntN(smallIDs))
		}
	}
	calls := []Call{first}
	for first.Key != "" && chance(r, 0.25) {
		again := first
		again.At += Duration(between(r, 0, pick(r, 5*time.Millisecond, time.Second, time.Minute)).Round(time.Millisecond))
		again.Node = node()
		calls = append(calls, again)
	}
	for chance(r, 0.25) {
		calls = append(calls, Call{
			At:   first.At + Duration(between(r, 0, pick(r, 50*time.Millisecond, 2*time.Second, time.Minute)).Round(time.Millisecond)),
			Verb: VerbCancel, Node: node(), Label: label, Force: chance(r, 0.2),
		})
	}
	for chance(r, 0.2) {
		calls = append(calls, Call{
			At:   first.At + Duration(between(r, 0, pick(r, time.Second, time.Minute)).Round(time.Millisecond)),
			Verb: VerbGet, Node: node(), Label: label,
		})
	}
	return append(calls, drawDeletes(r, o, first)...)
}

// drawDeletes deletes the run soon after it may have ended, and may submit it again.
func drawDeletes(r *rand.Rand, o Options, first Call) (calls []Call) {
	node := func() string { return NodeName(r.IntN(o.Nodes)) }
	for chance(r, 0.2) {
		later := first.Command.Takes + Duration(between(r, 0, pick(r, time.Second, time.Minute, 5*time.Minute)).Round(time.Millisecond))
		calls = append(calls, Call{At: first.At + later, Verb: VerbDelete, Node: node(), Label: first.Label})
		if first.Key != "" && chance(r, 0.3) {
			again := first
			again.At += later + Duration(between(r, 0, pick(r, 20*time.Millisecond, time.Minute)).Round(time.Millisecond))
			again.Node = node()
			calls = append(calls, again)
		}
	}
	return calls
}

func drawCommand(r *rand.Rand) *Command {
	c := &Command{
		Takes:         Duration(between(r, 0, pick(r, 2*time.Millisecond, time.Second, 10*time.Second, time.Minute, 4*time.Minute, 12*time.Minute)).Round(time.Millisecond)),
		Timeout:       Duration(pick(r, 8*time.Hour, 5*time.Minute, 30*time.Second, 3*time.Second)),
		StartDeadline: Duration(pick(r, 5*time.Minute, 5*time.Minute, time.Minute, 5*time.Second)),
		StopGrace:     Duration(pick(r, 10*time.Second, time.Second, 30*time.Second)),
		Deaf:          chance(r, 0.15),
	}
	if chance(r, 0.3) {
		c.Code = pick[int32](r, 1, 2, 3, 127, 137, 255)
	}
	if chance(r, 0.15) {
		c.Orphan = Duration(between(r, 0, 30*time.Second).Round(time.Millisecond))
	}
	if chance(r, 0.3) {
		c.Retry = drawRetry(r, c)
	}
	return c
}

// drawImages gives some runs an image: mostly one that several are of, sometimes one of
// its own, rarely one that no registry has.
func drawImages(r *rand.Rand, calls []Call) {
	share, images := pick(r, 0, 0.3, 0.8), map[string]string{}
	for i := range calls {
		c := &calls[i]
		if c.Command == nil {
			continue
		}
		image, drawn := images[c.Label]
		if !drawn {
			if chance(r, share) {
				image = pick(r, "base:1", "base:2", "base:2", "of-"+c.Label, "absent/it:1")
			}
			images[c.Label] = image
		}
		command := *c.Command
		command.Image, c.Command = image, &command
	}
}

// drawRetry draws what a command tries again; most that do fail.
func drawRetry(r *rand.Rand, c *Command) *Retry {
	if c.Code == 0 && chance(r, 0.6) {
		c.Code = pick[int32](r, 1, 2, 42)
	}
	retry := &Retry{
		Retries: pick[int32](r, 0, 1, 2, 3), HealsAt: pick[int32](r, 0, 0, 2, 3), OnLoss: chance(r, 0.6),
		Backoff: Duration(pick(r, 0, 100*time.Millisecond, time.Second, 10*time.Second)), Jitter: pick[int32](r, 0, 20, 100),
	}
	retry.BackoffMax = retry.Backoff * pick[Duration](r, 1, 2, 4)
	if chance(r, 0.2) {
		retry.Never = []int32{pick[int32](r, 1, 42)}
	}
	retry.Waits = !retry.OnLoss && chance(r, 0.6)
	return retry
}
