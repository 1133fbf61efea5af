// Package deadline is the deadline actor: for one shard it follows the live keys
// of all runs that have not ended, and wakes each run's actor when its next_wake
// has come. It writes nothing and decides nothing: what a wake means is the run
// actor's business, so a wake too many does no harm, and a second deadline actor
// for the same shard does none either.
//
// There is a second one, and a third, so that no wake waits for anybody to notice
// that a node is gone: the first nodes in rank for a shard have one each. What the
// first does when it is due the others do half a second later each, unless the live
// key has moved by then. One whose node is no longer among them passivates.
//
// Where sessions can end it follows the nodes as well, and wakes the runs that are
// placed in a session when that is gone: they wait for it, and are lost then.
//
// It is also what brings runs back after a restart: when it takes a shard over it
// wakes every live run once that may be waited for, spread over a second. When the nodes
// of the cluster change it so wakes the runs whose actors belong to another node than
// before. A run whose command runs in a session that lives, and whose next_wake is far,
// waits for nobody but its node, and is left alone.
//
// A wake may be lost, so it is repeated each second until the live key moves or
// the run actor answers how long to wait. An owner that takes the wakes and gets
// nowhere does neither: repeats go past it, down the ranks and around again. next_wake is wall time, and nothing is
// done by a wall clock that is not healthy; repeats and answers are durations and
// count on the boottime clock, which no step of the wall clock reaches and which
// goes on while the machine sleeps. It is the wall time of whichever node wrote it, so
// it is not believed when it is far ahead: the run is woken once more, and its answer
// is a duration. So are all that wait for a wall time when the clock here was set, and,
// while it can not be trusted, every ten seconds those that wait for a node.
package deadline

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/placement"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

const (
	// wakesPerTurn bounds how many runs one turn wakes; the rest follow in the next.
	wakesPerTurn = 256
	// repeatAfter is how soon a wake is repeated that nobody has answered.
	repeatAfter = time.Second
	// takeoverSpread is the time over which a takeover wakes the live runs that may be
	// waited for, if there are not more than takeoverWakesPerSecond; then it is longer.
	takeoverSpread         = time.Second
	takeoverWakesPerSecond = 4096
	// awakeMin is the shortest wait that an answer may ask for.
	awakeMin = 100 * time.Millisecond
	// unhealthyLook is when to look again while the wall clock can not be trusted.
	unhealthyLook = time.Second
	// lookMax bounds the wait for a wall time, so that a step of the wall clock or a
	// sleep of the machine is noticed.
	lookMax = 10 * time.Second
	// waitingMax and placedMax bound how long a next_wake is believed, of a run without
	// and with a placement, and placedMax what an answer may ask for. Whoever wrote the
	// time may have had a clock that was ahead. A waiting run is looked at far more often
	// than this, and one wake too many an hour costs a running one nothing.
	waitingMax = time.Minute
	placedMax  = time.Hour
	// stepMax is by how much the wall may move against boottime between two looks
	// without having been set.
	stepMax = time.Second
	// hedgeAfter is how much later than the one before it in rank an actor acts.
	hedgeAfter = 500 * time.Millisecond
	// turnPause lets other inputs in between two full turns.
	turnPause = time.Millisecond
	// pastPerSecond bounds how many wakes pass over an owner: where all are slow because
	// the store is, a second activation of each run would make them slower.
	pastPerSecond = 64
)

const timerDue = "due"

// RanksMax is how many nodes have a deadline actor for the same shard.
const RanksMax = 3

// Config is what all deadline actors of a node share.
type Config struct {
	Keys records.Keys
	// Node is the one that they are on, and View what it sees of the cluster: the same
	// View until that changes. It does not block. A nil View means that the node is
	// alone.
	Node string
	View func() *placement.View
	// Sessions says that the sessions of nodes can end.
	Sessions bool
}

// Machine is one activation of a deadline actor. It implements actors.Machine.
type Machine struct {
	identity string
	cfg      Config
	shard    int32
	valid    bool

	// view is the one that rank comes from. rank is this node's for the shard, 0 when
	// it has no business here.
	view      *placement.View
	rank      int
	following bool

	live    records.Mirror
	nodes   records.Mirror
	taken   bool
	entries map[string]*entry
	// hosts are the nodes that live runs are placed on.
	hosts map[string]*host
	// byWall holds the runs whose next_wake is awaited, in milliseconds of Unix
	// time. byBoot holds those that were woken or are about to be for a takeover, in
	// nanoseconds of boottime. Each run is in exactly one.
	byWall, byBoot queue
	// offset is by how much the wall was ahead of boottime at the last look; set says
	// that it has moved and that nobody was woken for it yet.
	offset time.Duration
	set    bool
	// blind is the boottime of the last look at what waits, in a time without a wall
	// clock that can be trusted; 0 outside of one.
	blind time.Duration
	// armed is the boottime at which the timer fires; 0 when there is none.
	armed time.Duration
	// past counts the wakes that have passed over an owner since pastSince.
	past      int
	pastSince time.Duration

	out []actors.Effect
}

// New returns the actor of a shard, which identity names in decimal.
func New(identity string, cfg Config) *Machine { return &Machine{identity: identity, cfg: cfg} }

// Step takes one input and returns what it asks for.
func (m *Machine) Step(now actors.Instant, in actors.Input) []actors.Effect {
	m.out = nil
	if _, ok := in.(actors.Activated); ok {
		m.activate()
	}
	m.look(now)
	m.lookAtWall(now)
	switch in := in.(type) {
	case actors.Followed:
		if in.Prefix == m.cfg.Keys.Nodes() {
			m.nodesFollowed(now, in.Batch)
		} else {
			m.followed(now, in.Batch)
		}
	case actors.Received:
		m.receive(now, in.Message)
	case actors.TimerFired:
		m.armed = 0
	}
	if m.rank == 0 {
		// Refused while a message is on its way, which brings another turn.
		m.emit(actors.Passivate{})
		return m.out
	}
	if !m.following {
		m.following = true
		m.emit(actors.Follow{Prefix: m.cfg.Keys.LiveInShard(m.shard)})
		if m.cfg.Sessions {
			m.emit(actors.Follow{Prefix: m.cfg.Keys.Nodes()})
		}
	}
	more := m.wakeDue(now)
	m.arm(now, more)
	return m.out
}

func (m *Machine) emit(effect actors.Effect) { m.out = append(m.out, effect) }

func (m *Machine) log(level actors.LogLevel, text string, fields ...any) {
	m.emit(actors.Log{Level: level, Text: text, Fields: append([]any{"shard", m.identity}, fields...)})
}

func (m *Machine) activate() {
	*m = Machine{identity: m.identity, cfg: m.cfg, entries: map[string]*entry{}, hosts: map[string]*host{}}
	shard, err := strconv.ParseInt(m.identity, 10, 32)
	if err != nil || shard < 0 || shard >= int64(m.cfg.Keys.Shards) {
		m.log(actors.LogError, "no such shard", "shards", m.cfg.Keys.Shards)
		return
	}
	m.shard, m.valid = int32(shard), true
}

// look takes a change of the view in.
func (m *Machine) look(now actors.Instant) {
	if !m.valid {
		return
	}
	if m.cfg.View == nil {
		m.rank = 1
		return
	}
	before := m.view
	if m.view = m.cfg.View(); m.view == before {
		return
	}
	if m.rank = m.view.Rank(m.cfg.Node, actors.KindDeadline, m.identity); m.rank > RanksMax {
		m.rank = 0
	}
	if before != nil && m.rank > 0 {
		m.wakeMoved(now, before)
	}
}

// wakeMoved has the runs woken whose actors belong to another node than before, unless
// they rest: what the one there was waiting for nobody may know any more.
func (m *Machine) wakeMoved(now actors.Instant, before *placement.View) {
	var moved []string
	for run, e := range m.entries { //errand:unordered sorted below
		if before.First(actors.KindRun, run) != m.view.First(actors.KindRun, run) && (e.in != &m.byWall || !m.rests(now, e, e.at)) {
			moved = append(moved, run)
		}
	}
	slices.Sort(moved)
	m.wakeSoon(now, moved)
}

// lookAtWall has all runs woken when the wall clock was set and can be trusted again:
// what they wait for may have been written by the clock of before.
func (m *Machine) lookAtWall(now actors.Instant) {
	offset := time.Duration(now.Wall.UnixNano()) - now.Boot
	if m.offset != 0 && (offset-m.offset).Abs() > stepMax {
		m.set = true
	}
	m.offset = offset
	if !now.WallHealthy {
		m.lookBlindly(now)
		return
	}
	m.blind = 0
	if m.set {
		m.set = false
		m.wakeSoon(now, slices.Sorted(maps.Keys(m.entries)))
	}
}

// lookBlindly has the runs woken that wait for a node, now and then: without a wall
// clock it is not known which of them are due, and for being placed none is needed.
func (m *Machine) lookBlindly(now actors.Instant) {
	if m.blind > 0 && now.Boot-m.blind < lookMax {
		return
	}
	m.blind = now.Boot
	var waiting []string
	for run, e := range m.entries { //errand:unordered sorted below
		if e.waits && e.in == &m.byWall {
			waiting = append(waiting, run)
		}
	}
	slices.Sort(waiting)
	m.wakeSoon(now, waiting)
}

// wakeSoon has runs woken in their order, spread over the time of a takeover.
func (m *Machine) wakeSoon(now actors.Instant, runs []string) {
	for i, run := range runs {
		e := m.entries[run]
		at := m.spread(now, i, len(runs))
		if e.in != &m.byBoot || e.at > at {
			m.byBoot.put(e, at)
		}
	}
}

// spread is when the i-th of n runs is to be woken that all want to be now.
func (m *Machine) spread(now actors.Instant, i, n int) int64 {
	over := max(takeoverSpread, time.Second/takeoverWakesPerSecond*time.Duration(n))
	return int64(now.Boot + m.delay() + over*time.Duration(i)/time.Duration(n))
}

// delay is how much later than the first in rank this one acts.
func (m *Machine) delay() time.Duration { return time.Duration(max(m.rank-1, 0)) * hedgeAfter }

func (m *Machine) receive(now actors.Instant, message proto.Message) {
	switch message := message.(type) {
	case *actorv1.Awake:
		m.awake(now, message)
	case *actorv1.Activate:
	default:
		m.log(actors.LogWarn, "dropped a message that a deadline actor does not know")
	}
}

// awake puts off the next repeat. An answer that comes when the live key has moved
// on is about an older wake, and the key's time counts. 0 leaves the repeat as it
// is: the live key is about to move.
func (m *Machine) awake(now actors.Instant, message *actorv1.Awake) {
	e := m.entries[message.GetRun()]
	if e != nil {
		e.wakes = 0
	}
	if e == nil || e.in != &m.byBoot || message.GetInMs() <= 0 {
		return
	}
	wait := placedMax
	if in := message.GetInMs(); in < placedMax.Milliseconds() {
		wait = max(time.Duration(in)*time.Millisecond, awakeMin)
	}
	m.byBoot.put(e, int64(now.Boot+wait))
}

// apply lets a mirror go back with its store: who is due is judged by what the store
// holds, and whether anything of that may run is for the nodes to say.
func (m *Machine) apply(mirror *records.Mirror, batch records.Batch) []records.Event {
	if batch.Reset && batch.Revision < mirror.Revision() {
		m.log(actors.LogDebug, "the store has gone back", "revision", batch.Revision, "seen", mirror.Revision())
		return mirror.Rebase(batch)
	}
	return mirror.Apply(batch)
}

func (m *Machine) followed(now actors.Instant, batch records.Batch) {
	changes := m.apply(&m.live, batch)
	takeover := batch.Reset && !m.taken
	if takeover {
		m.taken = true
		level := actors.LogDebug
		if m.live.Len() > 0 {
			level = actors.LogInfo
		}
		m.log(level, "took over a shard", "live", m.live.Len())
	}
	for i, change := range changes {
		run := records.LastPart(change.KV.Key)
		e := m.entries[run]
		switch {
		case change.Deleted:
			if e != nil {
				e.in.remove(e)
				m.seat(e, "", 0)
				delete(m.entries, run)
			}
			continue
		case e == nil:
			e = &entry{}
		}
		// The text is that of the mirror's key, which came with this change.
		e.run, m.entries[run] = run, e
		e.wakes = 0
		next, believed := m.noteLive(e, change.KV)
		switch {
		case takeover && !m.rests(now, e, next):
			m.byBoot.put(e, m.spread(now, i, len(changes)))
		case m.lostSession(e):
			m.byBoot.put(e, int64(now.Boot+m.delay()))
		case time.UnixMilli(next).Sub(now.Wall) > believed:
			m.byBoot.put(e, int64(now.Boot+believed+m.delay()))
		default:
			m.byWall.put(e, next)
		}
	}
}

// rests tells whether a run needs nobody before its next_wake: it is placed in a session
// that lives, and its time is further off than that of any that waits for a node, a
// start or the end of a stop (a minute). Its node does what is to be done, and tells it
// until that is heard. By a wall clock that can not be trusted none is known to rest.
func (m *Machine) rests(now actors.Instant, e *entry, next int64) bool {
	return now.WallHealthy && !e.waits && time.UnixMilli(next).Sub(now.Wall) > waitingMax && !m.lostSession(e)
}

// noteLive keeps in which session a run is, and returns its next_wake and how far
// ahead that is believed.
func (m *Machine) noteLive(e *entry, kv records.KV) (next int64, believed time.Duration) {
	live := &recordv1.Live{}
	if err := records.Decode(kv, live); err != nil {
		// Due at once: the run actor knows better.
		m.log(actors.LogError, "a live key can not be read", "error", err.Error())
		return 0, placedMax
	}
	if m.cfg.Sessions {
		m.seat(e, live.GetNode(), live.GetSession())
	}
	if e.waits = live.GetNode() == ""; e.waits {
		return live.GetNextWake(), waitingMax
	}
	return live.GetNextWake(), placedMax
}

// wakeDue wakes what is due, and tells whether more is.
func (m *Machine) wakeDue(now actors.Instant) bool {
	for woken := 0; ; woken++ {
		e := m.due(now)
		if e == nil {
			return false
		}
		if woken == wakesPerTurn {
			return true
		}
		m.wake(now, e)
	}
}

func (m *Machine) wake(now actors.Instant, e *entry) {
	shard, past := m.shard, actors.Past(int(e.wakes))
	if past > 0 && !m.mayPass(now) {
		past = 0
	} else {
		e.wakes++
	}
	m.emit(actors.Tell{
		Kind: actors.KindRun, Identity: e.run, Past: past,
		Message: &actorv1.Wake{Run: e.run, Shard: &shard, Node: m.cfg.Node},
	})
	m.byBoot.put(e, int64(now.Boot+repeatAfter))
}

// mayPass takes one of the wakes that may pass over an owner now.
func (m *Machine) mayPass(now actors.Instant) bool {
	if now.Boot-m.pastSince >= time.Second {
		m.past, m.pastSince = 0, now.Boot
	}
	if m.past == pastPerSecond {
		return false
	}
	m.past++
	return true
}

func (m *Machine) due(now actors.Instant) *entry {
	if e := m.byBoot.first(); e != nil && e.at <= int64(now.Boot) {
		return e
	}
	if e := m.byWall.first(); e != nil && now.WallHealthy && e.at+m.delay().Milliseconds() <= now.Milli() {
		return e
	}
	return nil
}

// arm sets the one timer to the earliest thing to do.
func (m *Machine) arm(now actors.Instant, more bool) {
	wait := lookMax
	if e := m.byBoot.first(); e != nil {
		wait = min(wait, time.Duration(e.at)-now.Boot)
	}
	if e := m.byWall.first(); e != nil {
		until := time.UnixMilli(e.at).Add(m.delay()).Sub(now.Wall)
		if !now.WallHealthy {
			until = max(until, unhealthyLook)
		}
		wait = min(wait, until)
	}
	if more {
		wait = 0
	}
	if len(m.entries) == 0 {
		return
	}
	at := now.Boot + max(wait, turnPause)
	if m.armed != 0 && m.armed <= at && m.armed > now.Boot {
		return
	}
	m.armed = at
	m.emit(actors.SetTimer{Name: timerDue, After: at - now.Boot})
}
