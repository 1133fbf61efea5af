package machine

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/virtual"
)

// changesPerSync bounds the changes that go in one sync, as those of the journal do.
const changesPerSync = 1024

// Errors of the disk.
var (
	// ErrFull is delivered by a disk that is full.
	ErrFull = errors.New("no space left on device")
	// ErrDisk is delivered for a sync that failed.
	ErrDisk = errors.New("input/output error")
	// ErrDamaged is delivered to a load of a journal that can not be read.
	ErrDamaged = errors.New("the journal is damaged")
)

// Disk holds the journal of a machine. It survives everything but its own faults.
type Disk struct {
	machine *Machine
	content content
	// damaged disks can not be read.
	damaged bool
	// marks is memory of the machine: how far each journal has come on this boot.
	marks map[string]uint64
	// journals counts those that began here.
	journals int

	// opened is the life that has the journal open.
	opened *Daemon
	// tail is what a batch has left that nobody was told to be durable, nil if none has.
	tail *tail
	// cached leads back to what is durable from what was read, where that is more; hole
	// says that no sync brings the rest to the disk.
	cached []undo
	hole   bool
	// spoiled files can not be read by who opens them next.
	spoiled bool
	flaw    Flaw

	// queue is what the daemon has asked for and busy the part of it that is on its
	// way to the disk.
	queue, busy []request
	stop        func()
}

// fresh is an empty journal that nobody has a copy of.
func (d *Disk) fresh() content {
	d.journals++
	return content{journal: d.machine.name + "/" + strconv.Itoa(d.journals), position: 1}
}

// content is what a journal holds. Its values are never changed.
type content struct {
	// journal tells journals apart; copies have that of their original, and position is
	// how far they have come.
	journal  string
	position uint64
	meta     *recordv1.JournalMeta
	entries  map[nodes.PlacementKey]*recordv1.JournalEntry
	// undo leads back to before the last sync, when it is gone through backwards.
	undo []undo
}

// undo is a value of before: that of an entry, nil where it was absent, or the head.
type undo struct {
	key   nodes.PlacementKey
	entry *recordv1.JournalEntry
	head  bool
	meta  *recordv1.JournalMeta
}

func (c content) clone() content {
	return content{journal: c.journal, position: c.position, meta: c.meta, entries: maps.Clone(c.entries)}
}

// applyAll makes the changes of some requests.
func (c *content) applyAll(requests []request) {
	c.undo = c.undo[:0]
	for _, r := range requests {
		c.apply(r.change)
	}
}

func (c *content) apply(change nodes.JournalChange) {
	if change.Meta != nil {
		c.undo = append(c.undo, undo{head: true, meta: c.meta})
		c.meta = change.Meta
	}
	if c.entries == nil {
		c.entries = map[nodes.PlacementKey]*recordv1.JournalEntry{}
	}
	for _, entry := range change.Puts {
		c.set(nodes.KeyOf(entry), entry)
	}
	for _, key := range change.Deletes {
		c.set(key, nil)
	}
}

func (c *content) set(key nodes.PlacementKey, entry *recordv1.JournalEntry) {
	c.undo = append(c.undo, undo{key: key, entry: c.entries[key]})
	if entry == nil {
		delete(c.entries, key)
	} else {
		c.entries[key] = entry
	}
}

// revert takes the last sync back, once.
func (c *content) revert() {
	c.goBack(c.undo)
	c.undo = nil
}

func (c *content) goBack(undo []undo) {
	for _, u := range slices.Backward(undo) {
		switch {
		case u.head:
			c.meta = u.meta
		case u.entry == nil:
			delete(c.entries, u.key)
		default:
			c.entries[u.key] = u.entry
		}
	}
}

// request is one change, or one load.
type request struct {
	change  nodes.JournalChange
	written func(error)
	loaded  func(nodes.JournalContent, error)
}

// journalPort is the disk as one life of the daemon has it open.
type journalPort struct{ daemon *Daemon }

var _ nodes.Journal = journalPort{}

// Load delivers what is durable, after every change written before.
func (j journalPort) Load(deliver func(nodes.JournalContent, error)) {
	if !j.daemon.dead {
		// Whoever reads it anew has forgotten what it said.
		j.daemon.informed = false
		j.daemon.machine.fence.judge()
	}
	j.ask(request{loaded: deliver})
}

// Write makes a change durable and then delivers nil.
func (j journalPort) Write(change nodes.JournalChange, deliver func(error)) {
	j.ask(request{change: change, written: deliver})
}

func (j journalPort) ask(r request) {
	if j.daemon.dead {
		return
	}
	d := &j.daemon.machine.disk
	d.queue = append(d.queue, r)
	if d.busy == nil {
		d.sync()
	}
}

// sync begins to make durable what waits, up to the next load.
func (d *Disk) sync() {
	if len(d.queue) == 0 {
		return
	}
	n := 1
	for d.queue[0].written != nil && n < len(d.queue) && d.queue[n].written != nil && n < changesPerSync {
		n++
	}
	d.busy, d.queue = d.queue[:n:n], d.queue[n:]
	d.stop = d.machine.timers.after(d.duration(), false, d.synced)
}

func (d *Disk) duration() time.Duration {
	m := d.machine
	faults := &m.Faults.Disk
	took := faults.Sync.Draw(m.random)
	if virtual.Chance(m.random, faults.StallRate) {
		took += faults.Stall.Draw(m.random)
		m.note(history.KindMachine, "disk stalls")
	}
	return took
}

// synced ends what is on its way, and goes on with the next.
func (d *Disk) synced() {
	busy, life := d.busy, d.machine.daemon
	d.busy, d.stop = nil, nil
	err := d.open(life)
	if busy[0].loaded != nil {
		var content nodes.JournalContent
		if err == nil && d.damaged {
			err = records.Errorf(records.ClassInternal, "load journal: %w", ErrDamaged)
		}
		if err == nil {
			content = d.read()
			life.informed = true
			d.machine.fence.judge()
		}
		d.sync()
		busy[0].loaded(content, err)
		return
	}
	if err == nil {
		err = d.write(busy)
	}
	d.sync()
	for _, r := range busy {
		if life.dead {
			return // one of them ended it
		}
		r.written(err)
	}
}

// write makes a batch durable, or fails.
func (d *Disk) write(batch []request) error {
	switch faults := &d.machine.Faults.Disk; {
	case empty(batch):
		return nil // it is not written
	case faults.Full:
		return records.Errorf(records.ClassUnavailable, "write journal: %w", ErrFull)
	case virtual.Chance(d.machine.random, faults.ErrorRate):
		d.leave(batch, true)
		return records.Errorf(records.ClassUnavailable, "write journal: %w", ErrDisk)
	default:
		d.renew(batch)
		d.store(batch)
		return nil
	}
}

// empty tells whether a batch changes nothing.
func empty(batch []request) bool {
	return !slices.ContainsFunc(batch, func(r request) bool {
		return r.change.Meta != nil || len(r.change.Puts) > 0 || len(r.change.Deletes) > 0
	})
}

// store makes changes durable, all of them.
func (d *Disk) store(requests []request) {
	d.content.applyAll(requests)
	d.content.position = max(d.content.position, d.marks[d.content.journal]) + 1
	d.mark()
}

// mark remembers in the machine's memory how far the journal has come.
func (d *Disk) mark() {
	if d.marks == nil {
		d.marks = map[string]uint64{}
	}
	d.marks[d.content.journal] = d.content.position
}

// read returns what is acknowledged; it is the caller's.
func (d *Disk) read() nodes.JournalContent {
	out := nodes.JournalContent{Reverted: d.content.position < d.marks[d.content.journal]}
	if !out.Reverted {
		d.mark()
	}
	if d.content.meta != nil {
		out.Meta = proto.CloneOf(d.content.meta)
	}
	for _, entry := range d.sorted() {
		out.Entries = append(out.Entries, proto.CloneOf(entry))
	}
	return out
}

// sorted returns the entries by run, attempt and placement.
func (d *Disk) sorted() []*recordv1.JournalEntry {
	return slices.SortedFunc(maps.Values(d.content.entries), func(a, b *recordv1.JournalEntry) int {
		if c := strings.Compare(a.GetRun(), b.GetRun()); c != 0 {
			return c
		}
		if a.GetAttempt() != b.GetAttempt() {
			return int(a.GetAttempt() - b.GetAttempt())
		}
		return int(a.GetPlacement() - b.GetPlacement())
	})
}

// crash drops what was not written when the daemon ended. The batch under way may have
// got through to the kernel.
func (d *Disk) crash() {
	if d.stop != nil {
		d.stop()
		if d.busy[0].written != nil && !d.machine.Faults.Disk.Full {
			d.leave(d.busy, false)
		}
	}
	d.queue, d.busy, d.stop = nil, nil, nil
}

// powerOff takes back what only the kernel had, and may undo the last sync.
func (d *Disk) powerOff() {
	d.forget()
	if d.content.position < d.marks[d.content.journal] {
		d.unnoticed()
	}
	d.marks = nil
	if len(d.content.undo) > 0 && virtual.Chance(d.machine.random, d.machine.Faults.Disk.TearRate) {
		d.content.revert()
		d.machine.note(history.KindMachine, "disk undoes its last write")
	}
}

// DiskCopy is what a disk held at one time. The zero value is an empty disk.
type DiskCopy struct{ content content }

// Copy copies what the disk holds, for Revert.
func (d *Disk) Copy() DiskCopy { return DiskCopy{d.content.clone()} }

// Revert puts a copy in place of what the disk holds. It is for a machine whose
// daemon is down.
func (d *Disk) Revert(to DiskCopy) {
	before := d.content
	d.replace(to.content.clone())
	if to.content.journal == "" {
		d.content = d.fresh()
	}
	d.machine.note(history.KindMachine, "disk reverted")
	if d.content.journal == before.journal && d.content.position < before.position && d.marks[before.journal] < before.position {
		d.unnoticed()
	}
}

// unnoticed notes that nothing on this machine tells any more that its journal is an
// older copy.
func (d *Disk) unnoticed() {
	d.machine.note(history.KindMachine, "no memory of what the disk held before")
}

// Lose puts an empty disk in place of the disk. It is for a machine whose daemon is
// down.
func (d *Disk) Lose() {
	d.replace(d.fresh())
	d.machine.note(history.KindMachine, "disk lost")
}

// replace puts another journal in the place of the one that is there.
func (d *Disk) replace(with content) {
	d.content, d.damaged = with, false
	d.tail, d.cached, d.hole, d.spoiled = nil, nil, false, false
}

// Damage makes the journal unreadable until Lose or Revert.
func (d *Disk) Damage() {
	d.damaged = true
	d.machine.note(history.KindMachine, "disk damaged")
}
