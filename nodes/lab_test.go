package nodes

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// labStore is a store of one goroutine.
type labStore struct {
	revision int64
	keys     map[string]records.KV
}

func (s *labStore) holds(c records.Compare) bool {
	if c.Prefix {
		for key := range s.keys { //errand:unordered it has to hold for all
			one := c
			if one.Key, one.Prefix = key, false; strings.HasPrefix(key, c.Key) && !s.holds(one) {
				return false
			}
		}
		return true
	}
	kv := s.keys[c.Key]
	value := kv.Mod
	if c.Target == records.TargetCreate {
		value = kv.Create
	}
	switch c.Relation {
	case records.Equal:
		return value == c.Operand
	case records.NotEqual:
		return value != c.Operand
	default:
		return value > c.Operand
	}
}

// apply carries a transaction out and returns what it changed.
func (s *labStore) apply(txn records.Txn) (records.Result, []records.Event) {
	ops, succeeded := txn.Then, true
	for _, c := range txn.If {
		if !s.holds(c) {
			ops, succeeded = txn.Else, false
			break
		}
	}
	result := records.Result{Succeeded: succeeded}
	var events []records.Event
	next := s.revision + 1
	for _, op := range ops {
		var response records.OpResult
		switch op.Kind {
		case records.OpGet:
			for _, key := range slices.Sorted(maps.Keys(s.keys)) {
				if key == op.Key || op.Prefix && strings.HasPrefix(key, op.Key) {
					response.KVs = append(response.KVs, s.keys[key])
				}
			}
		case records.OpPut:
			kv := records.KV{Key: op.Key, Value: op.Value, Mod: next, Create: next, Lease: op.Lease}
			if old, ok := s.keys[op.Key]; ok {
				kv.Create = old.Create
			}
			s.keys[op.Key] = kv
			events = append(events, records.Event{KV: kv})
		case records.OpDelete:
			if _, ok := s.keys[op.Key]; ok {
				delete(s.keys, op.Key)
				events = append(events, records.Event{KV: records.KV{Key: op.Key, Mod: next}, Deleted: true})
			}
		}
		result.Responses = append(result.Responses, response)
	}
	if len(events) > 0 {
		s.revision = next
	}
	result.Revision = s.revision
	return result, events
}

// lab is the world of one machine: what is durable, what is on its way, and what
// runs. Every choice is the caller's.
type lab struct {
	keys    records.Keys
	now     actors.Instant
	store   labStore
	machine *Machine
	boot    string
	lives   uint32
	goal    Phase
	session SessionConfig
	lessor  labLeases
	fence   labFence
	// accept is what the operator has said of losses.
	accept struct{ store, journal bool }
	// only is a node that may not share its store.
	only bool

	meta    *recordv1.JournalMeta
	entries map[PlacementKey]*recordv1.JournalEntry
	boxes   map[string]*labBox
	// reverted is told of the journal until it is written.
	reverted bool

	writes  []WriteJournal
	calls   []CallLease
	ops     []DoSandbox
	commits []actors.Commit
	inputs  []actors.Input
	tells   []actors.Tell
	watched []actors.Followed
	follows []string
	timers  map[string]time.Duration
	reached Phase
	left    bool
	failure error
	logs    []string
	created func(sandbox.Spec)
	started func(id string)
	// stepping and stepped are called before and after each turn.
	stepping func()
	stepped  func(actors.Input, []actors.Effect)
	startErr func(id string) error
	// deaf says of all boxes that come that they are.
	deaf  bool
	ended func(id string, code int32)
	// hang says which verbs are not answered but with an error.
	// refuseWrite is the error of a write of the journal, nil when it is carried out.
	refuseWrite func(JournalChange) error
	hang        func(SandboxVerb) error
	// killing is called before a KILL of a sandbox of which something is alive.
	killing func(id string)
	// committed is called after each transaction.
	committed func()
}

var labKeys = records.Keys{Root: records.RootDefault, Shards: 4}

func newLab() *lab {
	l := &lab{
		keys: labKeys, boot: "boot-1", entries: map[PlacementKey]*recordv1.JournalEntry{}, boxes: map[string]*labBox{},
		store: labStore{keys: map[string]records.KV{}}, goal: PhaseAnnounced,
		lessor: labLeases{leases: map[int64]*labLease{}, term: 7},
		now:    actors.Instant{Wall: time.UnixMilli(1_800_000_000_000), WallHealthy: true, Boot: time.Hour},
	}
	l.store.apply(l.keys.Found(&recordv1.Cluster{Epoch: 1, Shards: 4, Hash: records.HashName, Solo: true, Id: "cluster-1"}))
	return l
}

// launch starts a life of the node's process.
func (l *lab) launch() {
	l.lives++
	l.machine = NewMachine(MachineConfig{
		Config: Config{
			ID: "n1", Keys: l.keys, BootID: l.boot, LogPath: func(string, int32) string { return "/logs" }, SandboxesMax: 8, CPUMillis: 4000, MemoryBytes: 1 << 30,
			Drivers: []string{"null"}, StartsInFlightMax: 2, Session: l.session, OnlyNode: l.only,
			AcceptLostStore: l.accept.store, AcceptLostJournal: l.accept.journal,
		},
		Incarnation: l.lives, FreshUUID: "uuid-1",
	})
	l.writes, l.calls, l.ops, l.commits, l.inputs, l.watched, l.follows = nil, nil, nil, nil, nil, nil, nil
	l.timers, l.reached, l.left, l.failure = map[string]time.Duration{}, 0, false, nil
	l.step(actors.Activated{})
}

// step gives the machine one input and takes its effects.
func (l *lab) step(in actors.Input) []actors.Effect {
	if l.stepping != nil {
		l.stepping()
	}
	effects := l.machine.Step(l.now, in)
	if l.stepped != nil {
		l.stepped(in, effects)
	}
	for _, effect := range effects {
		switch e := effect.(type) {
		case Attach:
			l.inputs = append(l.inputs, Advance{To: l.goal})
		case LoadJournal:
			l.inputs = append(l.inputs, JournalLoaded{Tag: e.Tag, Content: l.content()})
		case WriteJournal:
			l.writes = append(l.writes, e)
		case CallLease:
			l.calls = append(l.calls, e)
		case ReadFence:
			state, ok := l.fence.Load()
			l.inputs = append(l.inputs, FenceRead{Tag: e.Tag, State: state, OK: ok})
		case ArmFence:
			l.fence.Arm(e.State)
			state, ok := l.fence.Load()
			l.inputs = append(l.inputs, FenceRead{Tag: e.Tag, State: state, OK: ok})
		case DoSandbox:
			l.ops = append(l.ops, e)
		case actors.Commit:
			l.commits = append(l.commits, e)
		case actors.Tell:
			l.tells = append(l.tells, e)
		case actors.Follow:
			l.follow(e.Prefix)
		case actors.SetTimer:
			if delete(l.timers, e.Name); e.After >= 0 {
				l.timers[e.Name] = l.now.Mono + e.After
			}
		case Reached:
			if e.Err != nil {
				l.failure = e.Err
			} else {
				l.reached = e.Phase
			}
		case Left:
			l.left = true
		case actors.Log:
			l.logs = append(l.logs, e.Text)
		}
	}
	return effects
}

func (l *lab) content() JournalContent {
	content := JournalContent{Meta: proto.CloneOf(l.meta), Reverted: l.reverted}
	if l.meta == nil {
		content.Meta = nil
	}
	for _, entry := range l.entries {
		content.Entries = append(content.Entries, proto.CloneOf(entry))
	}
	slices.SortFunc(content.Entries, func(a, b *recordv1.JournalEntry) int { return strings.Compare(a.GetSandbox(), b.GetSandbox()) })
	return content
}

func (l *lab) follow(prefix string) {
	l.follows = append(l.follows, prefix)
	l.resync(prefix)
}

// resync delivers a Reset of a followed prefix in place of what is on its way.
func (l *lab) resync(prefix string) {
	l.watched = slices.DeleteFunc(l.watched, func(f actors.Followed) bool { return f.Prefix == prefix })
	batch := records.Batch{Reset: true, Revision: l.store.revision}
	for _, key := range slices.Sorted(maps.Keys(l.store.keys)) {
		if strings.HasPrefix(key, prefix) {
			batch.Events = append(batch.Events, records.Event{KV: l.store.keys[key]})
		}
	}
	l.watched = append(l.watched, actors.Followed{Prefix: prefix, Batch: batch})
}

// commit carries a transaction out and lets the watches know.
func (l *lab) commit(txn records.Txn) records.Result {
	if l.deadLease(txn) {
		return records.Result{Err: records.Errorf(records.ClassInvalid, "the lease is gone")}
	}
	result, events := l.store.apply(txn)
	result.Term = l.lessor.term
	if l.committed != nil {
		l.committed()
	}
	for _, prefix := range l.follows {
		batch := records.Batch{Revision: l.store.revision}
		for _, event := range events {
			if strings.HasPrefix(event.KV.Key, prefix) {
				batch.Events = append(batch.Events, event)
			}
		}
		if len(batch.Events) > 0 {
			l.watched = append(l.watched, actors.Followed{Prefix: prefix, Batch: batch})
		}
	}
	return result
}

// writeNext makes the oldest write durable.
func (l *lab) writeNext() WriteJournal {
	w := l.writes[0]
	l.writes, l.reverted = l.writes[1:], false
	if w.Change.Meta != nil {
		l.meta = w.Change.Meta
	}
	for _, entry := range w.Change.Puts {
		l.entries[KeyOf(entry)] = entry
	}
	for _, key := range w.Change.Deletes {
		delete(l.entries, key)
	}
	return w
}

// written carries out the oldest write, unless the disk refuses it.
func (l *lab) written() JournalWritten {
	if w := l.writes[0]; l.refuseWrite != nil {
		if err := l.refuseWrite(w.Change); err != nil {
			l.writes = l.writes[1:]
			return JournalWritten{Tag: w.Tag, Err: err}
		}
	}
	return JournalWritten{Tag: l.writeNext().Tag}
}

// perform does the i-th sandbox operation, if it can be decided now.
func (l *lab) perform(i int) (SandboxDone, bool) {
	op := l.ops[i]
	if l.hang != nil {
		if err := l.hang(op.Op.Verb); err != nil {
			l.ops = slices.Delete(l.ops, i, i+1)
			return SandboxDone{Tag: op.Tag, Op: op.Op, Result: SandboxResult{Err: err}}, true
		}
	}
	result, done := l.drive(op.Op)
	if !done {
		return SandboxDone{}, false
	}
	l.ops = slices.Delete(l.ops, i, i+1)
	return SandboxDone{Tag: op.Tag, Op: op.Op, Result: result}, true
}

// drive is a driver that keeps to its contract.
func (l *lab) drive(op SandboxOp) (SandboxResult, bool) {
	b := l.boxes[op.ID]
	missing := SandboxResult{Err: records.Errorf(records.ClassNotFound, "no sandbox")}
	switch op.Verb {
	case VerbCreate:
		if b != nil {
			return SandboxResult{Err: records.Errorf(records.ClassConflict, "it exists")}, true
		}
		if l.created != nil {
			l.created(op.Spec)
		}
		l.boxes[op.ID] = &labBox{run: op.Spec.Run, attempt: op.Spec.Attempt, placement: op.Spec.Placement, state: sandbox.StateCreated, deaf: l.deaf, token: op.Spec.StartToken, hash: op.Spec.SpecHash, unfenced: op.Spec.Unfenced}
	case VerbStart:
		if b == nil {
			return missing, true
		}
		b.starts++
		if l.started != nil {
			l.started(op.ID)
		}
		if l.startErr != nil {
			if err := l.startErr(op.ID); err != nil {
				var refused *sandbox.StartError
				if !errors.As(err, &refused) {
					b.state, b.alive = sandbox.StateRunning, true
				}
				return SandboxResult{Err: err}, true
			}
		}
		b.state, b.alive = sandbox.StateRunning, true
		return SandboxResult{StartedAt: l.now.Wall}, true
	case VerbSignal:
		if b == nil {
			return missing, true
		}
		if b.state != sandbox.StateRunning {
			return SandboxResult{}, true
		}
		if !b.deaf || op.Signal != int(syscall.SIGTERM) {
			l.end(op.ID, int32(128+op.Signal), int32(op.Signal))
		}
		return SandboxResult{Delivered: true}, true
	case VerbKill:
		if b == nil {
			return SandboxResult{}, true
		}
		leftover := b.alive
		if leftover && l.killing != nil {
			l.killing(op.ID)
		}
		if b.state == sandbox.StateRunning {
			l.end(op.ID, 137, 9)
		}
		b.alive = false
		return SandboxResult{Leftover: leftover}, true
	case VerbWait:
		if b == nil {
			return missing, true
		}
		if b.state != sandbox.StateExited {
			return SandboxResult{}, false
		}
		return SandboxResult{Exit: b.exit}, true
	case VerbFlush:
		return b.flushed(), true
	case VerbRemove:
		if b != nil && b.stuck {
			return SandboxResult{Err: records.Errorf(records.ClassUnavailable, "it is stuck")}, true
		}
		delete(l.boxes, op.ID)
	case VerbList:
		var infos []sandbox.Info
		for _, id := range slices.Sorted(maps.Keys(l.boxes)) {
			b := l.boxes[id]
			infos = append(infos, sandbox.Info{ID: id, Run: b.run, Attempt: b.attempt, Placement: b.placement, State: b.state, StartToken: b.token, SpecHash: b.hash, Trace: b.trace})
		}
		return SandboxResult{Infos: infos}, true
	}
	return SandboxResult{}, true
}

// end ends the main process; code is what it ended with.
func (l *lab) end(id string, code, signal int32) {
	b := l.boxes[id]
	b.state = sandbox.StateExited
	b.exit = sandbox.Exit{Code: &code, Signal: signal, StartedAt: l.now.Wall, At: l.now.Wall, Source: "lab"}
	if l.ended != nil {
		l.ended(id, code)
	}
}

// pass lets time go by and fires what is due, earliest first.
func (l *lab) pass(d time.Duration) {
	end := l.now.Mono + d
	for {
		name, due, found := "", end, false
		for _, n := range slices.Sorted(maps.Keys(l.timers)) {
			if at := l.timers[n]; at <= due && (!found || at < due) {
				name, due, found = n, at, true
			}
		}
		if !found {
			break
		}
		l.advanceTo(max(due, l.now.Mono))
		delete(l.timers, name)
		l.step(actors.TimerFired{Name: name})
	}
	l.advanceTo(end)
}

func (l *lab) advanceTo(mono time.Duration) {
	d := mono - l.now.Mono
	l.now.Mono += d
	l.now.Boot += d
	l.now.Wall = l.now.Wall.Add(d)
}

// settle carries out everything that is under way, in order, but tells.
func (l *lab) settle() { l.settleWhile(func() bool { return true }) }

func (l *lab) settleWhile(more func() bool) {
	for more() {
		switch {
		case len(l.inputs) > 0:
			in := l.inputs[0]
			l.inputs = l.inputs[1:]
			l.step(in)
		case len(l.writes) > 0:
			l.step(l.written())
		case len(l.commits) > 0:
			c := l.commits[0]
			l.commits = l.commits[1:]
			l.step(actors.Committed{Tag: c.Tag, Result: l.serve(c.Txn)})
		case len(l.calls) > 0:
			call := l.calls[0]
			l.calls = l.calls[1:]
			l.step(l.answer(call))
		case len(l.watched) > 0:
			f := l.watched[0]
			l.watched = l.watched[1:]
			l.step(f)
		default:
			if !l.settleOps() {
				return
			}
		}
	}
}

func (l *lab) settleOps() bool {
	for i := range l.ops {
		if done, ok := l.perform(i); ok {
			l.step(done)
			return true
		}
	}
	return false
}
