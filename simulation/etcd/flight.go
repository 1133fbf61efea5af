package etcd

import (
	"strconv"

	"github.com/errand-run/errand/cluster/flight"
	"github.com/errand-run/errand/cluster/records"
)

// aloneMax is how many transactions that share no flight a client has under way beside
// its flights, as the production adapter does.
const aloneMax = 16

// Flaw is a way in which flights can be handled wrongly: what a mutation lets a client
// do.
type Flaw uint8

// The flaws.
const (
	// FlawFootprints lets whoever is there share a flight, whatever they touch.
	FlawFootprints Flaw = iota + 1
	// FlawUnknownResent sends what was on a flight without an answer again, one by one.
	FlawUnknownResent
	// FlawChildRevision takes the revision that the store gives inside of a flight.
	FlawChildRevision
	// FlawRefusalHanded tells everybody on a flight why that was refused.
	FlawRefusalHanded
)

// submit hands a write to the machine, and sees to it that it does not wait too long.
func (c *Client) submit(k *call) {
	touched := k.txn
	if c.Flaw == FlawFootprints {
		c.submitted++
		touched = elsewhere(touched, strconv.FormatUint(c.submitted, 36))
	}
	k.ticket = c.machine.Submit(touched, k)
	c.depart()
	if c.machine.Waiting() > 0 && !k.aboard {
		k.stopTimer = c.cluster.timeline.After(k.deadline-sendMin-c.cluster.timeline.Now(), func() { c.overdue(k) })
	}
}

// elsewhere is a transaction of the same shape on keys that nobody else has.
func elsewhere(txn records.Txn, suffix string) records.Txn {
	moved := records.Txn{If: make([]records.Compare, len(txn.If))}
	for i, compare := range txn.If {
		moved.If[i] = records.Compare{Key: compare.Key + suffix}
	}
	move := func(ops []records.Op) []records.Op {
		to := make([]records.Op, len(ops))
		for i, op := range ops {
			to[i] = records.Op{Kind: op.Kind, Key: op.Key + suffix, Value: op.Value}
		}
		return to
	}
	moved.Then, moved.Else = move(txn.Then), move(txn.Else)
	return moved
}

// overdue answers what could not be sent in time, and of what is under way with others
// that have longer that nobody knows.
func (c *Client) overdue(k *call) {
	k.stopTimer = nil
	switch {
	case c.closed || k.done:
	case c.machine.Withdraw(k.ticket):
		c.finish(k, answer{err: errNotSent})
	case c.cluster.timeline.Now() < k.deadline+sendMin:
		k.stopTimer = c.cluster.timeline.After(k.deadline+sendMin-c.cluster.timeline.Now(), func() { c.overdue(k) })
	default:
		c.finish(k, answer{err: errTimeout})
	}
}

// depart sends all that may leave.
func (c *Client) depart() {
	for f := c.machine.Depart(); f != nil; f = c.machine.Depart() {
		carrier := &call{client: c, verb: verbWrite, flight: f}
		for _, member := range f.Members {
			member.Owner.aboard = true
			carrier.deadline = max(carrier.deadline, member.Owner.deadline)
		}
		if len(f.Members) == 1 {
			carrier.txn = f.Members[0].Owner.txn
		} else {
			c.cluster.note(c.link.name + " sends " + strconv.Itoa(len(f.Members)) + " transactions together")
		}
		c.cluster.sendCall(carrier)
	}
}

// land tells the machine what became of a flight and answers who was on it.
func (c *Client) land(carrier *call, a answer) {
	f := carrier.flight
	shared := len(f.Members) > 1
	var answers []flight.Answer[*call]
	switch {
	case a.err == nil:
		if !shared {
			a.children = []records.Result{a.result}
		}
		answers = c.machine.Answered(f, a.result.Revision, a.result.Term, a.children)
	case a.err == errReset || a.err == errTimeout: //nolint:errorlint // ours, never wrapped
		if shared && c.Flaw == FlawUnknownResent {
			answers = c.machine.Refused(f, a.err, false)
			break
		}
		answers = c.machine.Unanswered(f, a.err)
	case a.err == errRefused: //nolint:errorlint // ours, never wrapped
		answers = c.machine.Unanswered(f, a.err)
	case shared && c.Flaw == FlawRefusalHanded:
		answers = c.machine.Unanswered(f, a.err)
	default:
		answers = c.machine.Refused(f, a.err, a.err == ErrTooManyOps) //nolint:errorlint // ours, never wrapped
	}
	c.depart()
	for _, told := range answers {
		if shared && c.Flaw == FlawChildRevision {
			told.Result.Revision = 0
		}
		c.finish(told.Member.Owner, answer{err: told.Result.Err, result: told.Result})
	}
}

// fly carries out a flight of several.
func (c *Cluster) fly(k *call) answer {
	txn := &Txn{Then: make([]Op, len(k.flight.Members))}
	for i, member := range k.flight.Members {
		var t translator
		txn.Then[i] = Op{Kind: Nested, Txn: t.translate(&member.Owner.txn)}
	}
	response, err := c.admit(txn, nil)
	if err != nil {
		return answer{err: err}
	}
	term := c.members[k.member].term
	a := answer{result: result(response, term), children: make([]records.Result, len(response.Ops))}
	for i := range response.Ops {
		a.children[i] = result(*response.Ops[i].Txn, term)
	}
	return a
}
