package deadline

import (
	"slices"
	"strings"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
)

// host is a node that live runs of the shard are placed on.
type host struct {
	name  string
	seats []*entry
}

// seat notes where a run is placed; no node means nowhere.
func (m *Machine) seat(e *entry, node string, session int64) {
	e.session = session
	if e.host != nil && e.host.name == node {
		return
	}
	if h := e.host; h != nil {
		last := len(h.seats) - 1
		h.seats[e.seat] = h.seats[last]
		h.seats[e.seat].seat = e.seat
		h.seats[last] = nil
		h.seats = h.seats[:last]
		if last == 0 {
			delete(m.hosts, h.name)
		}
		e.host = nil
	}
	if node == "" {
		return
	}
	h := m.hosts[node]
	if h == nil {
		h = &host{name: node}
		m.hosts[node] = h
	}
	e.host, e.seat = h, int32(len(h.seats)) //nolint:gosec // a place of what is in memory
	h.seats = append(h.seats, e)
}

// lostSession tells whether a run is placed in a session that is over. What is not
// seen yet of the nodes says nothing: it will come.
func (m *Machine) lostSession(e *entry) bool {
	if e.host == nil || m.nodes.Revision() < e.session {
		return false
	}
	kv, _ := m.nodes.Get(m.cfg.Keys.Node(e.host.name))
	return kv.Create != e.session
}

// nodesFollowed wakes the runs whose session has ended, spread over the time of a
// takeover. A Reset may leave out a session that has come and gone, so it looks at
// all of them.
func (m *Machine) nodesFollowed(now actors.Instant, batch records.Batch) {
	changes := m.apply(&m.nodes, batch)
	var lost []*entry
	if batch.Reset {
		for _, name := range m.hostNames() {
			lost = m.lostOf(lost, name)
		}
	} else {
		for _, change := range changes {
			lost = m.lostOf(lost, records.LastPart(change.KV.Key))
		}
	}
	slices.SortFunc(lost, func(a, b *entry) int { return strings.Compare(a.run, b.run) })
	lost = slices.Compact(lost)
	if len(lost) > 0 {
		m.log(actors.LogWarn, "sessions of nodes are over", "runs", len(lost))
	}
	for i, e := range lost {
		m.byBoot.put(e, m.spread(now, i, len(lost)))
	}
}

func (m *Machine) lostOf(lost []*entry, node string) []*entry {
	h := m.hosts[node]
	if h == nil {
		return lost
	}
	for _, e := range h.seats {
		if m.lostSession(e) {
			lost = append(lost, e)
		}
	}
	return lost
}

func (m *Machine) hostNames() []string {
	names := make([]string, 0, len(m.hosts))
	for name := range m.hosts {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
