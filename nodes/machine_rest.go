package nodes

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// A placement rests when its command runs and nothing is to be done until it ends or
// somebody asks. Of one at rest there is its encoded entry and its places in the tables
// below, and no closure, timer or message. Whoever looks one up has it roused first; at
// the end of the turn it rests again.

// restlessRoom is how many of a turn come to rest without making room for them.
const restlessRoom = 64

// find returns the placement of a sandbox, roused, or nil.
func (m *Machine) find(id string) *placement { return m.rouse(m.placements[id]) }

// ofTheRun returns the placements of a run, roused, in the order in which they came.
func (m *Machine) ofTheRun(run string) (all []*placement) {
	for p := m.ofRun[run]; p != nil; p = p.next {
		all = append(all, m.rouse(p))
	}
	return all
}

// everyone returns all placements, roused, by their sandboxes' names.
func (m *Machine) everyone() []*placement {
	all := make([]*placement, 0, len(m.placements))
	for _, id := range sortedKeys(m.placements) {
		all = append(all, m.find(id))
	}
	return all
}

// link puts a placement behind the others of its run.
func (m *Machine) link(p *placement) {
	last := m.ofRun[p.key.Run]
	if last == nil {
		m.ofRun[p.key.Run] = p
		return
	}
	for last.next != nil {
		last = last.next
	}
	last.next = p
}

// unlink takes it away from there.
func (m *Machine) unlink(p *placement) {
	first := m.ofRun[p.key.Run]
	switch {
	case first != p:
		for at := first; at != nil; at = at.next {
			if at.next == p {
				at.next = p.next
			}
		}
	case p.next != nil:
		m.ofRun[p.key.Run] = p.next
	default:
		delete(m.ofRun, p.key.Run)
	}
	p.next = nil
}

// rests tells whether a placement may rest.
func (m *Machine) rests(p *placement) bool {
	return p.doing != nil && p.started() && p.waitTag != 0 && p.assignment == nil && len(p.written) == 0 &&
		p.mayExist && p.startCalled && p.passing == passing{seen: &unseen} &&
		p.entry.GetCommit() <= m.assignments.Revision() &&
		p.entry.GetBootId() == m.config.BootID && p.entry.GetSandbox() == p.id
}

// restLater has a placement rest at the end of the turn, if it may by then.
func (m *Machine) restLater(p *placement) {
	if p.started() {
		m.restless = append(m.restless, p)
	}
}

// restPerhaps has those rest that were roused or came so far in this turn, and may.
func (m *Machine) restPerhaps() {
	for _, p := range m.restless {
		if m.placements[p.id] == p && m.rests(p) {
			m.rest(p)
		}
	}
	clear(m.restless)
	m.restless = m.restless[:0]
}

func (m *Machine) rest(p *placement) {
	entry := p.entry
	entry.Run, entry.Attempt, entry.Placement, entry.Sandbox, entry.BootId = "", 0, 0, "", ""
	encoded, err := proto.MarshalOptions{}.MarshalAppend(m.encoding[:0], entry)
	if err != nil {
		panic(fmt.Sprintf("nodes: encode the entry of run %s: %v", p.key.Run, err))
	}
	m.encoding = encoded
	p.resting, p.doing = string(encoded), nil
}

// rouse makes of a placement at rest what it was before.
func (m *Machine) rouse(p *placement) *placement {
	if p == nil || p.doing != nil {
		return p
	}
	entry := &recordv1.JournalEntry{}
	if err := proto.Unmarshal([]byte(p.resting), entry); err != nil {
		panic(fmt.Sprintf("nodes: decode the entry of run %s: %v", p.key.Run, err))
	}
	entry.Run, entry.Attempt, entry.Placement, entry.Sandbox, entry.BootId = p.key.Run, p.key.Attempt, p.key.Placement, p.id, m.config.BootID
	m.share(entry)
	p.resting = ""
	p.doing = &doing{entry: entry, lane: m.laneOf(entry.GetDriver()), mayExist: true, startCalled: true, waiting: true}
	p.seen = &unseen
	m.restless = append(m.restless, p)
	return p
}

// share has one text serve all entries that say the same.
func (m *Machine) share(entry *recordv1.JournalEntry) {
	if entry.GetBootId() == m.config.BootID {
		entry.BootId = m.config.BootID
	}
	if at := slices.Index(m.config.Drivers, entry.GetDriver()); at >= 0 {
		entry.Driver = m.config.Drivers[at]
	}
}

// placementOf finds the placement that a message or a record is about, roused, or nil.
func (m *Machine) placementOf(run string, attempt, placement int32) *placement {
	return m.find(records.SandboxID(run, attempt, placement))
}
