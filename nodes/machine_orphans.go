package nodes

import (
	"bytes"
	"crypto/sha256"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// orphan is a sandbox of this node that its journal does not know, or that is not what
// the journal knows by its name. Its processes are killed, for nobody would tell how they
// end; it is in quarantine then, and never adopted. One that is what it claims to be goes
// when its run is seen twice not to need it, any other a day after it was found.
type orphan struct {
	driver string
	info   sandbox.Info
	// since is when it was found first, in milliseconds, through restarts.
	since int64
	// strange says what about it does not fit; empty while nothing is known against it.
	strange string
	ending  bool
	killed  bool
	looks   int
	removes int
	// kept: its run lives.
	kept bool
}

// What people read of a sandbox in quarantine.
const (
	strangeClaims = "it does not carry what a sandbox of its name carries"
	strangeToken  = "its start token is not that of the journal"
	strangeSpec   = "it was not made of what its run asks for"
	strangeTrace  = "something of a sandbox is there that is no more"
)

// mayHaveRun tells whether its command may have been started.
func (o *orphan) mayHaveRun() bool { return o.info.State != sandbox.StateCreated }

// until is when it goes at the latest.
func (o *orphan) until() int64 { return o.since + QuarantineHold.Milliseconds() }

// reason says why it is there, in one sentence.
func (o *orphan) reason() string {
	const unknown = "the journal does not know it"
	switch {
	case o.info.Trace:
		return strangeTrace
	case o.strange != "":
		return o.strange
	case o.kept:
		return unknown + "; its run lives"
	case o.looks > 0:
		return unknown + "; its run has ended or was deleted"
	default:
		return unknown
	}
}

// claims tells whether a sandbox carries what the engine gives to one of its name.
func claims(info sandbox.Info) bool {
	return info.ID == records.SandboxID(info.Run, info.Attempt, info.Placement) &&
		len(info.StartToken) > 0 && len(info.SpecHash) == sha256.Size
}

// strangeTo says what of a sandbox is not as the journal has it that knows its name, or
// nothing. A create that a crash has cut short may have left less than it would carry.
func strangeTo(entry *recordv1.JournalEntry, info sandbox.Info) string {
	switch {
	case info.State == sandbox.StateCreated:
		return ""
	case !bytes.Equal(entry.GetStartToken(), info.StartToken):
		return strangeToken
	case !bytes.Equal(entry.GetSpecHash(), info.SpecHash):
		return strangeSpec
	default:
		return ""
	}
}

// addOrphan takes note of a sandbox that is not the journal's.
func (m *Machine) addOrphan(found survivor, strange string) {
	o := &orphan{driver: found.driver, info: found.info, since: m.now.Milli(), strange: strange}
	if strange == "" && o.mayHaveRun() && !claims(found.info) {
		o.strange = strangeClaims
	}
	for _, known := range m.meta.GetQuarantined() {
		if known.GetSandbox() != found.info.ID || known.GetDriver() != found.driver {
			continue
		}
		o.since = min(o.since, known.GetSince())
		if o.strange == "" {
			// What it did not fit may be forgotten by now.
			o.strange = known.GetStrange()
		}
	}
	m.orphans[found.info.ID] = o
}

// journalQuarantine writes down since when each is there and what is known against it,
// if that is news: so a restart does not begin their day anew. Until the node has its
// session nothing is written.
func (m *Machine) journalQuarantine() {
	var now []*recordv1.Quarantined
	for _, id := range sortedKeys(m.orphans) {
		if o := m.orphans[id]; o.mayHaveRun() && len(now) < quarantinedShown {
			now = append(now, &recordv1.Quarantined{Sandbox: id, Driver: o.driver, Since: o.since, Strange: o.strange})
		}
	}
	if proto.Equal(&recordv1.JournalMeta{Quarantined: now}, &recordv1.JournalMeta{Quarantined: m.meta.GetQuarantined()}) {
		return
	}
	m.meta.Quarantined = now
	m.journal(JournalChange{Meta: proto.CloneOf(m.meta)}, func() {})
}

// endOrphans kills them: when the node has its session, or before it opens
// another one, for which no process of an earlier one may be left.
func (m *Machine) endOrphans() {
	for _, id := range sortedKeys(m.orphans) {
		o := m.orphans[id]
		if o.ending {
			continue
		}
		o.ending = true
		m.log(actors.LogWarn, "sandbox is not the journal's; it is stopped and kept in quarantine",
			"sandbox", o.info.ID, "run", o.info.Run, "driver", o.driver, "reason", o.reason())
		m.killOrphan(o, 0)
	}
}

func (m *Machine) killOrphan(o *orphan, try int) {
	m.do(SandboxOp{Verb: VerbKill, Driver: o.driver, ID: o.info.ID}, func(result SandboxResult) {
		if result.Err != nil {
			m.warn(try, "kill failed; it is tried again", "sandbox", o.info.ID, "error", result.Err.Error())
			m.after("orphan/"+o.info.ID, backoff(try), func() { m.killOrphan(o, try+1) })
			return
		}
		o.killed = true
		m.emptyPerhaps()
		m.pump()
		if !o.mayHaveRun() {
			// A create that a crash cut short: there is nothing to learn from it.
			m.removeOrphan(o)
			return
		}
		left := time.Duration(o.until()-m.now.Milli()) * time.Millisecond
		m.after("orphan/"+o.info.ID+"/hold", min(max(left, 0), QuarantineHold), func() { m.removeOrphan(o) })
		m.lookAfterOrphan(o)
	})
}

// lookAfterOrphan reads the run in whose name an orphan is: a record that does not speak
// of it is told, and one that is what it claims to be goes once its run is seen twice not
// to need it.
func (m *Machine) lookAfterOrphan(o *orphan) {
	if _, err := records.AppOfRun(o.info.Run); err != nil {
		return
	}
	m.commit(records.Read(records.Get(m.keys.Run(o.info.Run))), func(result records.Result) {
		if m.orphans[o.info.ID] != o {
			return
		}
		var run *recordv1.Run
		kv, found := result.First(0)
		err := result.Err
		if err == nil && found {
			run, err = records.DecodeRun(kv)
		}
		told := true
		if run != nil && err == nil {
			m.compareSpec(o, run)
			if told = quarantineRecorded(m.config.ID, o, run); !told && m.phase >= PhaseRegistered {
				m.tellOrphan(o)
			}
		}
		switch again := m.lookAgain(o); {
		case err != nil:
			again()
		case o.strange != "":
			if !told {
				again()
			}
		case run != nil && !records.Terminal(run.GetStatus()):
			if !o.kept {
				m.log(actors.LogWarn, "sandbox of a live run is not in the journal; it is kept until that has ended, or for a day", "sandbox", o.info.ID, "run", o.info.Run)
			}
			o.kept, o.looks = true, 0
			again()
		default:
			if o.looks++; o.looks < 2 {
				again()
				return
			}
			m.cancel("orphan/" + o.info.ID + "/hold")
			m.removeOrphan(o)
		}
	})
}

func (m *Machine) lookAgain(o *orphan) func() {
	return func() { m.after("orphan/"+o.info.ID, OrphanConfirm, func() { m.lookAfterOrphan(o) }) }
}

// compareSpec finds out whether an orphan was made of what its run asks for.
func (m *Machine) compareSpec(o *orphan, run *recordv1.Run) {
	hash := sha256.Sum256(records.Encode(run.GetSpec()))
	if o.strange != "" || bytes.Equal(hash[:], o.info.SpecHash) {
		return
	}
	o.strange = strangeSpec
	m.log(actors.LogWarn, "sandbox in quarantine is not of its run; it is kept for a day", "sandbox", o.info.ID, "run", o.info.Run)
	if m.phase >= PhaseRegistered {
		m.journalQuarantine()
	}
}

// tellOrphan tells a run that there is a sandbox in its name for which nothing accounts.
func (m *Machine) tellOrphan(o *orphan) {
	m.tellPast(0, o.info.Run, &actorv1.Quarantined{
		Run: o.info.Run, Attempt: o.info.Attempt, Placement: o.info.Placement, Node: m.config.ID, Since: o.since, Reason: o.reason(),
	})
}

// quarantineRecorded tells whether a run's record speaks of an orphan.
func quarantineRecorded(node string, o *orphan, run *recordv1.Run) bool {
	return slices.ContainsFunc(run.GetEvents(), func(e *recordv1.RunEvent) bool {
		return e.GetKind() == recordv1.RunEventKind_RUN_EVENT_KIND_QUARANTINED && e.GetNode() == node && e.GetAt() == o.since &&
			e.GetAttempt() == o.info.Attempt && e.GetPlacement() == o.info.Placement
	})
}

func (m *Machine) removeOrphan(o *orphan) {
	m.cancel("orphan/" + o.info.ID)
	m.do(SandboxOp{Verb: VerbRemove, Driver: o.driver, ID: o.info.ID}, func(result SandboxResult) {
		if result.Err != nil {
			m.warn(o.removes, "remove failed; it is tried again", "sandbox", o.info.ID, "run", o.info.Run, "error", result.Err.Error())
			m.removeFailed(o.info.ID, "orphan/"+o.info.ID, o.removes, result.Err, func() { m.removeOrphan(o) })
			o.removes++
			return
		}
		m.log(actors.LogInfo, "sandbox that was in quarantine is removed", "sandbox", o.info.ID, "run", o.info.Run,
			"reason", o.reason(), "after", time.Duration(m.now.Milli()-o.since)*time.Millisecond)
		delete(m.orphans, o.info.ID)
		delete(m.removals, o.info.ID)
		if m.phase >= PhaseRegistered {
			m.journalQuarantine()
		}
		m.pump()
	})
}
