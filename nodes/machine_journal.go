package nodes

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// journal makes a change durable, however often that has to be tried, and then
// goes on. While it fails nothing that depends on it happens and the node takes
// nothing more, but it lives: a full disk may be emptied.
func (m *Machine) journal(change JournalChange, then func()) {
	m.journalTry(change, 0, then)
}

func (m *Machine) journalTry(change JournalChange, try int, then func()) {
	tag := m.nextTag()
	m.writes[tag] = func(err error) {
		if err == nil {
			m.journalErr = nil
			then()
			return
		}
		if m.journalErr == nil {
			m.log(actors.LogError, "journal write failed; it is tried again and nothing new is taken meanwhile", "error", err.Error())
		}
		m.journalErr = err
		m.after(fmt.Sprintf("journal/%d", tag), backoff(try), func() { m.journalTry(change, try+1, then) })
	}
	m.emit(WriteJournal{Tag: tag, Change: change})
}

// persist makes the placement's entry, as it is now or later, durable and then
// goes on. At most one write of a placement is under way: so they can not
// overtake each other.
func (m *Machine) persist(p *placement, then func()) {
	p.written = append(p.written, then)
	if !p.writing {
		m.write(p)
	}
}

func (m *Machine) write(p *placement) {
	then := p.written
	p.writing, p.written = true, nil
	m.journal(JournalChange{Puts: []*recordv1.JournalEntry{proto.CloneOf(p.entry)}}, func() {
		p.writing = false
		if len(p.written) > 0 {
			m.write(p)
		}
		for _, next := range then {
			next()
		}
		m.settle(p)
		m.restLater(p)
		m.forgetPerhaps(p)
	})
}
