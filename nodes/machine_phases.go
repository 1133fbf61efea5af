package nodes

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// climb goes on to the next phase, unless one is under way or the target is
// reached.
func (m *Machine) climb() {
	if m.climbing || m.refused != nil || m.phase >= m.target {
		return
	}
	m.climbing = true
	switch m.phase + 1 {
	case PhaseRecovered:
		m.recover()
	case PhaseAdopted:
		m.adopt()
	case PhaseRegistered:
		m.register()
	case PhaseReconciling:
		m.emit(actors.Follow{Prefix: m.keys.AssignmentsOf(m.config.ID)})
		m.emit(actors.Follow{Prefix: m.keys.Drain(m.config.ID)})
		m.emit(actors.Follow{Prefix: m.keys.Node(m.config.ID)})
	case PhaseAnnounced:
		m.reach(PhaseAnnounced)
	}
}

func (m *Machine) reach(phase Phase) {
	m.phase, m.climbing = phase, false
	m.emit(Reached{Phase: phase})
	m.climb()
}

// refuse gives the start up for good: somebody has to look at it.
func (m *Machine) refuse(err error) {
	m.refused, m.climbing = err, false
	m.emit(Reached{Phase: m.phase + 1, Err: err})
}

// recover reads the journal and makes sure that it is this node's.
func (m *Machine) recover() {
	tag := m.nextTag()
	m.loads[tag] = func(content JournalContent, err error) {
		if err != nil {
			m.refuse(fmt.Errorf("load journal: %w", err))
			return
		}
		m.recovered(content)
	}
	m.emit(LoadJournal{Tag: tag})
}

func (m *Machine) recovered(content JournalContent) {
	if content.Meta == nil && len(content.Entries) > 0 {
		m.refuse(fmt.Errorf("load journal: it has %d entries and no owner: it is damaged", len(content.Entries)))
		return
	}
	if content.Meta != nil && content.Meta.GetNode() != m.config.ID {
		m.refuse(fmt.Errorf("load journal: it is that of node %q and this is node %q: use another data directory, or the name of before",
			content.Meta.GetNode(), m.config.ID))
		return
	}
	for _, entry := range content.Entries {
		p := m.add(proto.CloneOf(entry), nil)
		p.recovered = true
	}
	if content.Meta != nil {
		m.meta = proto.CloneOf(content.Meta)
	} else {
		// It is written when it is known that the node's name is free.
		m.fresh, m.meta = true, &recordv1.JournalMeta{Node: m.config.ID, Uuid: m.config.FreshUUID}
	}
	if content.Reverted {
		m.revert("it had come further on this boot", m.recoverFence)
		return
	}
	m.reverted = m.meta.GetReverted()
	m.recoverFence()
}

// revert takes the journal for an older copy from here on, through restarts too, and
// goes on: no session of it is resumed, and what it does not know to have been started
// may have been.
func (m *Machine) revert(evidence string, then func()) {
	if m.reverted {
		then()
		return
	}
	m.log(actors.LogError, "the journal is an older copy: what ran here is stopped, and what the copy does not know of may have been started", "evidence", evidence)
	m.reverted, m.meta.Reverted = true, true
	if m.fresh {
		then()
		return
	}
	// Nothing else may be written before it: the first write ends what tells the copy.
	m.journal(JournalChange{Meta: proto.CloneOf(m.meta)}, then)
}
