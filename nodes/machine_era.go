package nodes

import (
	"bytes"
	"fmt"
	"time"

	"github.com/errand-run/errand/actors"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// era is what a node makes of a store that was restored from an older copy
// (protocol.md section 6). The epoch tells the times between restores apart. In a new
// one all sessions are over, and whatever the copy holds may have gone on after it was
// made: nothing of it is started again.
type era struct {
	// cluster is what the store last said of itself.
	cluster *recordv1.Cluster
	// epoch is the one that was entered last, since when on the monotonic clock.
	epoch int64
	since time.Duration
	// regressed says that the store has gone back before the eyes of this node.
	regressed bool
	// accepted says that an older copy is to be gone on with all the same.
	accepted bool
}

// judgeEra makes sure that the epoch is not one of before.
func (m *Machine) judgeEra(cluster *recordv1.Cluster) error {
	switch {
	case cluster.GetEpoch() < m.meta.GetEpoch():
		return fmt.Errorf("the store is at epoch %d, the journal has seen %d: it is an older copy, and whoever restores one must raise the epoch above all of before",
			cluster.GetEpoch(), m.meta.GetEpoch())
	case cluster.GetEpoch() == m.meta.GetEpoch() && cluster.GetRestoredAt() != m.meta.GetRestoredAt():
		return fmt.Errorf("the store was restored again and is at epoch %d as before, so that fencing tokens would come twice: whoever restores a copy must raise the epoch above all of before",
			cluster.GetEpoch())
	default:
		return nil
	}
}

// judgeCopy makes sure that a store has not gone back behind what the journal knows,
// unless its epoch says that it was restored. A copy that is not older than the node's
// session shows in nothing but what it has seen in this life.
func (m *Machine) judgeCopy(cluster *recordv1.Cluster, info *recordv1.NodeInfo, revision int64) error {
	older := ""
	switch {
	case cluster.GetEpoch() > m.meta.GetEpoch():
		m.era.regressed = false
	case m.era.regressed:
		older = "it has gone back before the eyes of this node"
	case revision < m.meta.GetSession():
		older = fmt.Sprintf("it has come to revision %d, and this node has registered at %d", revision, m.meta.GetSession())
	case m.meta.GetSession() != 0 && info.GetGeneration() < m.meta.GetGeneration():
		older = fmt.Sprintf("it knows registration %d of this node, and the journal %d", info.GetGeneration(), m.meta.GetGeneration())
	}
	if older == "" {
		return nil
	}
	return fmt.Errorf("the store is an older copy: %s. Put the newer one back; if it is lost for good, start once with --accept-loss-of store: "+
		"what runs is stopped then, and what the copy lacks is gone", older)
}

// enterEra takes note of an epoch that the journal has not seen. What it knows of ends
// is told again, for the copy may lack it, and what it does not know to have been
// started may have been, and forgotten since.
func (m *Machine) enterEra() {
	epoch := m.era.cluster.GetEpoch()
	if m.meta.GetGeneration() == 0 || epoch <= m.meta.GetEpoch() || epoch == m.era.epoch {
		return
	}
	m.era.epoch, m.era.since = epoch, m.now.Mono
	m.reverted = true
	m.log(actors.LogError, "the store was restored from a copy: what runs is stopped, and nothing of the copy is started again", "epoch", epoch, "before", m.meta.GetEpoch())
	for _, p := range m.everyone() {
		p.acked, p.ackCommit, p.entry.AckedAtRevision, p.quarantined = false, 0, 0, false
		delete(m.acknowledged, p.id)
		m.settle(p)
	}
}

// awaitsEra tells whether it is too early to register in a new epoch: another node may
// not know yet that its session is over. What it runs is over by its fence, and until
// then nothing of the copy may be judged.
func (m *Machine) awaitsEra(try int) bool {
	if !m.leased() || m.era.epoch == 0 || m.meta.GetEpoch() == m.era.epoch {
		return false
	}
	left := m.era.since + m.config.Session.LossAfter() - m.now.Mono
	if left <= 0 {
		return false
	}
	m.trouble = fmt.Sprintf("the store was restored from a copy: the node registers in %s, when nothing of before can run any more", left.Round(time.Second))
	m.after("register", left, func() { m.registerTry(try) })
	return true
}

// refusalOf says why this run is not taken by anybody, or nothing: one that the copy
// holds was perhaps started after it was made.
func (m *Machine) refusalOf(ask *actorv1.Reserve) (string, recordv1.Reason) {
	if created := ask.GetCreated(); created == 0 || created > m.era.cluster.GetRestoredThrough() {
		return "", 0
	}
	return "the store was restored from a copy, and the run may have been started after that was made", recordv1.Reason_REASON_START_UNKNOWN
}

// otherLife tells whether an assignment is not that of which the journal knows the end,
// although all names are the same: its run was lost with a restore and created again.
// The node has no second sandbox of that name, so it takes the next placement.
func (m *Machine) otherLife(p *placement, a *recordv1.Assignment) bool {
	if p.entry.GetEpoch() == m.epoch || bytes.Equal(p.entry.GetStartToken(), a.GetStartToken()) {
		return false
	}
	m.tellPast(0, p.key.Run, &actorv1.Voided{
		Run: p.key.Run, Attempt: p.key.Attempt, Placement: p.key.Placement, Node: m.config.ID,
		Void: &recordv1.Void{Message: "the node has an earlier sandbox of that name, of before the store was restored", At: m.now.Milli()},
	})
	return true
}

// wentBack notices that the store shows less than this node has seen of it. In the
// session that it has nothing may run then, and no other is opened.
func (m *Machine) wentBack(revision int64) bool {
	if revision >= m.assignments.Revision() {
		return false
	}
	m.era.regressed = true
	m.log(actors.LogError, "the store has gone back", "revision", revision, "seen", m.assignments.Revision())
	if m.leased() {
		m.latch("the store has gone back to an older copy")
	}
	return true
}
