package nodes

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/errand-run/errand/actors"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// reservation is room that is kept for an assignment on its way.
type reservation struct {
	cpuMillis, memoryBytes int64
	until                  time.Duration
}

// reserve answers whether there is room, and keeps it for a while. Asked again it
// answers again and keeps it anew.
func (m *Machine) reserve(ask *actorv1.Reserve, from actors.Sender) {
	key := PlacementKey{Run: ask.GetRun(), Attempt: ask.GetAttempt(), Placement: ask.GetPlacement()}
	answer := &actorv1.Reserved{Run: key.Run, Attempt: key.Attempt, Placement: key.Placement, Node: m.config.ID}
	m.expireReservations()
	m.release(key)
	answer.Message, answer.PermanentReason = m.refusalOf(ask)
	if answer.Message == "" {
		answer.Message, answer.PermanentReason = m.refusal(ask.GetDriver(), ask.GetCpuMillis(), ask.GetMemoryBytes())
	}
	if answer.Message == "" {
		m.reservations[key] = &reservation{cpuMillis: ask.GetCpuMillis(), memoryBytes: ask.GetMemoryBytes(), until: m.now.Mono + ReservationHold}
		m.usage.add(1, ask.GetCpuMillis(), ask.GetMemoryBytes())
		answer.Yes, answer.Session, answer.Uuid, answer.HoldMs = true, m.session, m.meta.GetUuid(), ReservationHold.Milliseconds()
	}
	// Only the activation that asks has a use for it.
	m.emit(actors.Tell{Kind: actors.KindRun, Identity: key.Run, Node: ask.GetNode(), Message: answer})
	if from != nil {
		m.emit(actors.Answer{To: from, Message: answer})
	}
}

// refusal says in words why nothing more is taken, or nothing.
func (m *Machine) refusal(driver string, cpuMillis, memoryBytes int64) (string, recordv1.Reason) {
	switch {
	case m.phase < PhaseAnnounced:
		return "the node is starting: it is not registered yet", 0
	case !m.enabled(driver):
		return m.notEnabled(driver), recordv1.Reason_REASON_START_ERROR
	case m.leaving:
		return "the node's daemon is being stopped", 0
	case m.fenced():
		return "the node is fenced: it has lost its session and registers anew when nothing is left of it", 0
	case m.overdue(m.config.Session.StartMargin):
		return "the node could not renew its session for too long", 0
	case m.draining:
		return "the node is draining", 0
	case m.journalErr != nil:
		return "the node can not write its journal", 0
	case len(m.placements) >= EntriesMax:
		return fmt.Sprintf("%d ended runs wait on the node for their acknowledgement or removal", len(m.placements)), 0
	}
	return m.noRoom(cpuMillis, memoryBytes), 0
}

func (m *Machine) enabled(driver string) bool { return slices.Contains(m.config.Drivers, driver) }

func (m *Machine) notEnabled(driver string) string {
	return fmt.Sprintf("driver %q is not enabled (enabled: %s)", driver, strings.Join(m.config.Drivers, ", "))
}

func (m *Machine) noRoom(cpuMillis, memoryBytes int64) string {
	switch {
	case m.usage.count >= m.config.SandboxesMax:
		return fmt.Sprintf("no room: %d of %d sandboxes are in use", m.usage.count, m.config.SandboxesMax)
	case cpuMillis > 0 && m.usage.cpuMillis+cpuMillis > m.config.CPUMillis:
		return fmt.Sprintf("no room: cpu %dm asked, %dm of %dm free", cpuMillis, max(0, m.config.CPUMillis-m.usage.cpuMillis), m.config.CPUMillis)
	case memoryBytes > 0 && m.usage.memoryBytes+memoryBytes > m.config.MemoryBytes:
		return fmt.Sprintf("no room: memory %d bytes asked, %d of %d free", memoryBytes, max(0, m.config.MemoryBytes-m.usage.memoryBytes), m.config.MemoryBytes)
	}
	return ""
}

// release gives a reservation's room back and tells whether there was one.
func (m *Machine) release(key PlacementKey) bool {
	held, ok := take(m.reservations, key)
	if ok {
		m.usage.add(-1, held.cpuMillis, held.memoryBytes)
	}
	return ok
}

// sortedPlacementKeys makes an order out of a map by placement.
func sortedPlacementKeys[V any](of map[PlacementKey]V) []PlacementKey {
	return slices.SortedFunc(maps.Keys(of), func(a, b PlacementKey) int {
		return cmp.Or(cmp.Compare(a.Run, b.Run), cmp.Compare(a.Attempt, b.Attempt), cmp.Compare(a.Placement, b.Placement))
	})
}

// expireReservations is called before room is judged; the order does not matter,
// nothing is told.
func (m *Machine) expireReservations() {
	//errand:unordered nothing is told, and each is judged by itself
	for key, held := range m.reservations {
		if m.now.Mono >= held.until {
			m.release(key)
		}
	}
}
