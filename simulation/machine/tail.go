package machine

import (
	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/virtual"
)

// The journal is one file that is appended to. What a batch leaves in it that was not
// synced, or whose sync has failed, is found by whoever opens the journal next: whole,
// or, if only a part was written, not at all. Nobody was told of it, and it may be gone
// after a loss of power. So an open makes durable what it has found, by making the file
// anew, before anybody acts by it; and a file of which a write has failed is made anew
// before the next batch.

// tail is what a batch has left behind the last one that is durable.
type tail struct {
	batch []request
	// whole tells whether all of it is there for who opens the journal.
	whole bool
	// failed tells that its sync has failed: the kernel takes it for written, and no
	// later sync brings it to the disk.
	failed bool
}

// leave leaves a batch that was not acknowledged, of which a sync has failed or which
// the end of the daemon has caught under way.
func (d *Disk) leave(batch []request, failed bool) {
	m := d.machine
	if empty(batch) {
		return
	}
	if d.soiled() && d.flaw != FlawWrittenOver {
		if virtual.Chance(m.random, 0.5) {
			return // the file could not be made anew: it is as it was
		}
		d.durable()
	}
	d.tail = &tail{batch: batch, whole: virtual.Chance(m.random, m.Faults.Disk.KeepRate), failed: failed}
}

// soiled tells whether the next batch has to go to another file.
func (d *Disk) soiled() bool { return d.tail != nil || d.cached != nil }

// durable is the file made anew: what was acknowledged, and nothing else, is on the
// disk.
func (d *Disk) durable() { d.tail, d.cached, d.hole = nil, nil, false }

// open makes durable what a life finds that opens the journal.
func (d *Disk) open(life *Daemon) error {
	if d.opened == life {
		return nil
	}
	if d.damaged = d.damaged || d.spoiled; d.damaged {
		return records.Errorf(records.ClassInternal, "open journal: %w", ErrDamaged)
	}
	switch t := d.tail; {
	case t == nil:
	case t.whole:
		if err := d.settle(t); err != nil {
			return records.Errorf(records.ClassUnavailable, "open journal: %w", err)
		}
		d.machine.note(history.KindMachine, "the journal has more than was acknowledged")
	case d.flaw != FlawWrittenOver && !d.machine.Faults.Disk.Full:
		d.durable()
	}
	d.opened = life
	return nil
}

// settle makes a batch durable that was found. On a full disk the file can not be made
// anew: what it has is written to it again, and synced.
func (d *Disk) settle(t *tail) error {
	m := d.machine
	fails := func() bool { return virtual.Chance(m.random, m.Faults.Disk.ErrorRate) }
	if d.flaw != FlawUnsettled && (m.Faults.Disk.Full || fails()) && fails() {
		t.failed = true
		return ErrDisk
	}
	d.store(t.batch)
	d.durable()
	if d.flaw == FlawUnsettled {
		d.cached, d.content.undo, d.hole = d.content.undo, nil, t.failed
	}
	return nil
}

// renew is the file before a batch that will be durable: made anew where it must be.
func (d *Disk) renew(batch []request) {
	switch t := d.tail; {
	case d.flaw == FlawWrittenOver && t != nil:
		// What is left of the longer one stands behind the shorter one, and whoever opens
		// the journal next can not tell what that is.
		d.spoiled = d.spoiled || sectors(t.batch) > sectors(batch)
		d.tail = nil
	case d.flaw == FlawUnsettled && t == nil && d.hole:
		// The batch goes behind what no sync brings to the disk.
		d.cached = nil
	default:
		d.durable()
	}
}

// sectors is about what a batch takes of the file.
func sectors(batch []request) (n int) {
	const size = 512
	for _, r := range batch {
		for _, entry := range r.change.Puts {
			n += proto.Size(entry)
		}
		n += proto.Size(r.change.Meta)
	}
	return n / size
}

// forget is a loss of power: what was not synced may be gone.
func (d *Disk) forget() {
	m := d.machine
	kept := func() bool { return virtual.Chance(m.random, m.Faults.Disk.KeepRate) }
	if t := d.tail; t != nil && t.whole && kept() {
		d.store(t.batch)
	}
	switch {
	case d.cached != nil && !kept():
		d.content.goBack(d.cached)
		m.note(history.KindMachine, "the disk does not have what was read")
	case d.cached == nil && d.hole && !kept():
		d.damaged = true
	}
	d.durable()
}

// Flaw is a mistake that a journal could make.
type Flaw uint8

// The flaws.
const (
	// FlawUnsettled does not make durable what is read at the start.
	FlawUnsettled Flaw = iota + 1
	// FlawWrittenOver writes the next batch over what one has left that failed.
	FlawWrittenOver
)

// Mistake lets the disk behind a journal of this package make a mistake from now on.
func Mistake(j nodes.Journal, flaw Flaw) {
	port, ok := j.(journalPort)
	if !ok {
		panic("machine: the journal is none of a machine")
	}
	port.daemon.machine.disk.flaw = flaw
}
