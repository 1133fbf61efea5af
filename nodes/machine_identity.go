package nodes

import (
	"fmt"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// The responses of the read that proves who this node is: those of
// records.LoadSession, then two more.
const (
	loadedSession = iota
	loadedInfo
	loadedDrain
	loadedCluster
	loadedAssignments
	loadedNodes
)

// startsPerRead bounds the runs that are read at once, as the store bounds the
// operations of a transaction; one may be set to take far fewer than by default.
const startsPerRead = 16

func (m *Machine) readIdentity() records.Txn {
	ops := m.keys.LoadSession(m.config.ID).Then
	ops = append(ops, records.Get(m.keys.Cluster()), records.Range(m.keys.AssignmentsOf(m.config.ID)))
	if m.config.OnlyNode {
		others := records.Range(m.keys.Nodes())
		others.Limit = 2 // its own, and one that is not
		ops = append(ops, others)
	}
	return records.Read(ops...)
}

// identify proves by the store that the name and the journal are this machine's
// and goes on. Until then nothing may be touched that runs: a start that is
// refused leaves everything as it was.
func (m *Machine) identify(try int, then func()) {
	m.commit(m.readIdentity(), func(result records.Result) {
		if result.Err != nil {
			m.trouble = fmt.Sprintf("read what the store says of the node: %v", result.Err)
			m.log(actors.LogWarn, "the store does not say whose the name is; it is asked again", "error", result.Err.Error())
			if m.overdue(0) {
				// The fence, which is of this boot and of the journal's session, is proof enough to
				// kill what may not run any more.
				then()
				return
			}
			m.after("identify", backoff(try), func() { m.identify(try+1, then) })
			return
		}
		info, _, err := m.judgeOwner(result)
		if err != nil {
			m.refuse(fmt.Errorf("identify node %s: %w", m.config.ID, err))
			return
		}
		m.trouble = ""
		if info.GetGeneration() > m.meta.GetGeneration() && !m.fresh {
			m.revert(fmt.Sprintf("it holds registration %d, the store %d", m.meta.GetGeneration(), info.GetGeneration()), then)
			return
		}
		m.compareStarts(m.unstarted(result.Responses[loadedAssignments].KVs), try, then)
	})
}

// unstarted returns the assignments of which the journal knows no start.
func (m *Machine) unstarted(assignments []records.KV) (out []*recordv1.Assignment) {
	for _, kv := range assignments {
		assignment := &recordv1.Assignment{}
		if records.Decode(kv, assignment) != nil {
			continue // it is told when the session is opened
		}
		p := m.placementOf(assignment.GetRun(), assignment.GetAttempt(), assignment.GetPlacement())
		if p == nil || p.entry.GetState() == recordv1.JournalState_JOURNAL_STATE_ACCEPTED {
			out = append(out, assignment)
		}
	}
	return out
}

// compareStarts asks the store which of these it knows to be running, in parts: a
// journal that has forgotten one may have forgotten others of which nobody has heard.
func (m *Machine) compareStarts(unstarted []*recordv1.Assignment, try int, then func()) {
	if len(unstarted) == 0 || m.reverted {
		then()
		return
	}
	part := unstarted[:min(len(unstarted), startsPerRead)]
	ops := make([]records.Op, len(part))
	for i, assignment := range part {
		ops[i] = records.Get(m.keys.Run(assignment.GetRun()))
	}
	m.commit(records.Read(ops...), func(result records.Result) {
		if result.Err != nil {
			m.after("identify", backoff(try), func() { m.identify(try+1, then) })
			return
		}
		for i, assignment := range part {
			kv, ok := result.First(i)
			if !ok {
				continue
			}
			if run, err := records.DecodeRun(kv); err == nil && m.runsHere(run, assignment) {
				m.revert("it does not know that run "+run.GetId()+" was started", then)
				return
			}
		}
		m.compareStarts(unstarted[len(part):], try, then)
	})
}

// runsHere tells whether a run's record says that the placement of this assignment
// was started.
func (m *Machine) runsHere(run *recordv1.Run, assignment *recordv1.Assignment) bool {
	return run.GetStatus() == recordv1.Status_STATUS_RUNNING && run.GetPlacement().GetNode() == m.config.ID &&
		run.GetAttempt() == assignment.GetAttempt() && run.GetPlacement().GetNumber() == assignment.GetPlacement()
}

// judgeOwner makes sure that the name is ours and that the store is the one that
// the journal knows.
func (m *Machine) judgeOwner(loaded records.Result) (*recordv1.NodeInfo, int64, error) {
	cluster, info := &recordv1.Cluster{}, &recordv1.NodeInfo{}
	kv, ok := loaded.First(loadedCluster)
	if !ok {
		return nil, 0, fmt.Errorf("the store holds no cluster: %s is absent", m.keys.Cluster())
	}
	if err := records.Decode(kv, cluster); err != nil {
		return nil, 0, err
	}
	if cluster.GetShards() != m.keys.Shards || cluster.GetHash() != records.HashName {
		return nil, 0, fmt.Errorf("the cluster has %d shards by %s, this node is set to %d by %s",
			cluster.GetShards(), cluster.GetHash(), m.keys.Shards, records.HashName)
	}
	m.cluster, m.era.cluster = cluster.GetId(), cluster
	kv, ok = loaded.First(loadedInfo)
	if ok {
		if err := records.Decode(kv, info); err != nil {
			return nil, 0, err
		}
		if info.GetUuid() != m.meta.GetUuid() || m.fresh && !m.config.AcceptLostJournal {
			return nil, 0, m.otherOwner(info)
		}
	}
	switch foreign := m.foreign(info); {
	case foreign && !m.config.AcceptLostStore:
		return nil, 0, m.otherStore(ok)
	case !foreign:
		if err := m.judgeEra(cluster); err != nil {
			return nil, 0, err
		}
		if err := m.judgeCopy(cluster, info, loaded.Revision); err != nil && !m.config.AcceptLostStore {
			return nil, 0, err
		} else if err != nil {
			m.era.accepted = true
		}
	}
	m.epoch = cluster.GetEpoch()
	return info, kv.Mod, nil
}

// foreign tells whether the journal is of another store than the one that was
// read: of another cluster, or registered where this one knows nothing of it. A
// first registration that a crash cut short has left nothing to lose.
func (m *Machine) foreign(info *recordv1.NodeInfo) bool {
	switch {
	case m.meta.GetGeneration() == 0:
		return false
	case m.meta.GetCluster() != "" && m.meta.GetCluster() != m.cluster:
		return true
	case m.meta.GetCluster() != "" && m.era.cluster.GetEpoch() > m.meta.GetEpoch():
		return false // the copy that it was restored from may be older than this node
	default:
		return info.GetUuid() == "" && (m.meta.GetSession() != 0 || len(m.placements) > 0)
	}
}

// otherOwner says what it means that the store knows the name by another uuid.
func (m *Machine) otherOwner(info *recordv1.NodeInfo) error {
	if m.fresh {
		return fmt.Errorf("the store knows this node by uuid %s, and there is no journal of it here: journal.db of this data directory is missing, or another machine has the name. "+
			"If it is missing, put it back; if it is lost for good, start once with --accept-loss-of journal. If another machine has the name, give this one another name and a store of its own", info.GetUuid())
	}
	return fmt.Errorf("the store knows this node by uuid %s, the journal here is that of uuid %s: journal.db was replaced by another data directory's, or another machine has the name. "+
		"If it was replaced, put the right one back; if another machine has the name, give this one another name and a store of its own", info.GetUuid(), m.meta.GetUuid())
}

// otherStore says what it means that the store is not the journal's.
func (m *Machine) otherStore(known bool) error {
	what := "in which this node was never registered"
	if known {
		what = "which this node has left"
	}
	return fmt.Errorf("the journal belongs to another store: to cluster %q, by registration %d; this is cluster %q, %s. "+
		"Check --etcd-endpoints and --etcd-prefix, or restore the store from a snapshot. If its records are lost for good, start once with --accept-loss-of store: "+
		"the records of before are gone then, and what still runs of them is stopped", m.meta.GetCluster(), m.meta.GetGeneration(), m.cluster, what)
}

// leaveStore parts the journal from the store that it was registered in: no
// session of it is resumed and no revision of it means anything here. What the new
// store may say of placements that the journal does not know is not taken for
// something that never ran.
func (m *Machine) leaveStore() {
	m.log(actors.LogError, "the records of the store of before are lost, as was accepted; what runs of them is stopped",
		"cluster", m.meta.GetCluster(), "now", m.cluster)
	m.reverted, m.meta.Reverted = true, true
	m.meta.Session, m.meta.BootId = 0, ""
	for _, p := range m.everyone() {
		p.ackCommit, p.entry.Commit, p.entry.Session, p.entry.AckedAtRevision = 0, 0, 0, 0
		if p.ended() {
			m.persist(p, func() {})
		}
	}
}

// refuseWithoutJournal keeps a node whose journal is new from ending what an older
// journal knew.
func (m *Machine) refuseWithoutJournal(found map[string]survivor) bool {
	if !m.fresh || m.config.AcceptLostJournal {
		return false
	}
	for _, id := range sortedKeys(found) {
		if s := found[id]; s.info.State == sandbox.StateRunning {
			m.refuse(fmt.Errorf("adopt sandboxes: run %s is running here and there is no journal: journal.db of this data directory is missing. "+
				"Put it back; if it is lost for good, start once with --accept-loss-of journal: what runs is stopped then", s.info.Run))
			return true
		}
	}
	return false
}
