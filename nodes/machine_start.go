package nodes

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// The variables that every command finds in its environment.
const (
	EnvRunID        = sandbox.EnvRunID
	EnvAttempt      = sandbox.EnvAttempt
	EnvApp          = "ERRAND_APP"
	EnvFencingToken = "ERRAND_FENCING_TOKEN"
)

// sandboxSpec fills the user's environment up with the engine's.
func (m *Machine) sandboxSpec(p *placement) sandbox.Spec {
	a := p.assignment
	spec := &recordv1.Spec{
		Driver: a.GetSpec().GetDriver(), Image: a.GetSpec().GetImage(), Command: a.GetSpec().GetCommand(),
		WorkingDir: a.GetSpec().GetWorkingDir(), User: a.GetSpec().GetUser(),
		CpuMillis: a.GetSpec().GetCpuMillis(), MemoryBytes: a.GetSpec().GetMemoryBytes(), PidsLimit: a.GetSpec().GetPidsLimit(),
		ReadOnlyRoot: a.GetSpec().GetReadOnlyRoot(), TimeoutMs: a.GetSpec().GetTimeoutMs(),
		StartDeadlineMs: a.GetSpec().GetStartDeadlineMs(), StopGraceMs: a.GetSpec().GetStopGraceMs(),
		Pull: a.GetSpec().GetPull(), Stdin: a.GetSpec().GetStdin(), Terminal: a.GetSpec().GetTerminal(),
	}
	engine := []string{
		EnvApp + "=" + a.GetApp(),
		EnvAttempt + "=" + strconv.Itoa(int(a.GetAttempt())),
		EnvFencingToken + "=" + strconv.FormatUint(records.FencingTokenOf(m.epoch, p.entry.GetCommit()), 10),
		EnvRunID + "=" + a.GetRun(),
	}
	for _, variable := range a.GetSpec().GetEnv() {
		name, _, _ := strings.Cut(variable, "=")
		ours := func(of string) bool { return strings.HasPrefix(of, name+"=") }
		if !slices.ContainsFunc(engine, ours) {
			spec.Env = append(spec.Env, variable)
		}
	}
	spec.Env = append(spec.Env, engine...)
	return sandbox.Spec{
		ID: p.id, Run: a.GetRun(), App: a.GetApp(), Task: a.GetTask(), Name: a.GetName(),
		Attempt: a.GetAttempt(), Placement: a.GetPlacement(), NodeUUID: m.meta.GetUuid(), Spec: spec,
		StartToken: p.entry.GetStartToken(), SpecHash: p.entry.GetSpecHash(),
		Unfenced: p.entry.GetUnfenced(),
		LogPath:  m.config.LogPath(a.GetRun(), a.GetAttempt()),
	}
}

func (m *Machine) createdOrNot(p *placement, err error) {
	if p.ended() {
		// It was given up meanwhile; what may have come into being goes.
		m.tearDown(p)
		return
	}
	var refused *sandbox.StartError
	switch {
	case errors.As(err, &refused) && refused.Permanent: // the run's own fault
	case err != nil:
		m.log(actors.LogWarn, "sandbox can not be created", "run", p.key.Run, "sandbox", p.id, "error", err.Error())
	}
	if p.overdue != nil {
		m.void(p, lastWord(p, err))
		return
	}
	if err != nil {
		m.void(p, voidOf(p.id, err))
		return
	}
	p.entry.State = recordv1.JournalState_JOURNAL_STATE_STARTING
	p.syncingFrom = m.now.Mono
	m.persist(p, func() { m.startJournaled(p) })
}

// voidOf says why a sandbox that never started can not be.
func voidOf(id string, err error) *recordv1.Void {
	var start *sandbox.StartError
	if errors.As(err, &start) {
		return &recordv1.Void{
			Reason: start.Reason, Message: clip(start.Message), Permanent: start.Permanent,
			RetryAfterMs: start.RetryAfter.Milliseconds(),
		}
	}
	return &recordv1.Void{
		Reason: recordv1.Reason_REASON_START_ERROR, Message: clip("create sandbox: " + strings.TrimPrefix(sandbox.Cause(err), "create sandbox "+id+": ")),
		Permanent: records.ClassOf(err) == records.ClassInvalid,
	}
}

// startJournaled is the point of no return: the disk says "starting", now the
// driver may be asked to, once.
func (m *Machine) startJournaled(p *placement) {
	took := m.now.Mono - p.syncingFrom
	switch {
	case p.ended() || p.startCalled:
		return
	case p.withdrawn != nil:
		m.void(p, p.withdrawn)
		return
	case took > StartingSyncMax:
		m.log(actors.LogWarn, "journal is slow; the placement is given back", "run", p.key.Run, "took", took)
		m.void(p, &recordv1.Void{Reason: recordv1.Reason_REASON_START_ERROR, Message: "the node's journal took " + took.Round(time.Millisecond).String() + " to write"})
		return
	case m.overdue(m.config.Session.StartMargin):
		m.void(p, &recordv1.Void{Message: "the node could not renew its session for too long"})
		return
	}
	p.startCalled, p.starting = true, true
	m.do(SandboxOp{Verb: VerbStart, Driver: p.entry.GetDriver(), ID: p.id}, func(result SandboxResult) {
		p.starting = false
		m.releaseSlot(p)
		m.startAnswered(p, result)
		m.settle(p)
		m.pump()
	})
}

func (m *Machine) startAnswered(p *placement, result SandboxResult) {
	if p.ended() {
		return
	}
	var refused *sandbox.StartError
	switch {
	case result.Err == nil:
		m.running(p, result.StartedAt)
	case errors.As(result.Err, &refused) && !refused.Permanent:
		m.voidUnstarted(p, voidOf(p.id, result.Err))
	case errors.As(result.Err, &refused):
		m.exit(p, &recordv1.Exit{Reason: refused.Reason, Message: clip(refused.Message)})
	default:
		m.log(actors.LogWarn, "start's outcome is not known; the driver is asked", "run", p.key.Run, "error", result.Err.Error())
		m.inquire(p, 0)
	}
}

// inquire finds out what became of a start whose outcome is unknown. Whatever it
// is, the command is not started again.
func (m *Machine) inquire(p *placement, try int) {
	m.do(SandboxOp{Verb: VerbList, Driver: p.entry.GetDriver()}, func(result SandboxResult) {
		if p.ended() {
			return
		}
		if result.Err != nil {
			m.after("inquire/"+p.id, backoff(try), func() { m.inquire(p, try+1) })
			return
		}
		// Of one of which there is but a trace nobody will tell how it ends.
		at := slices.IndexFunc(result.Infos, func(info sandbox.Info) bool { return info.ID == p.id && !info.Trace })
		switch {
		case at >= 0 && result.Infos[at].State == sandbox.StateRunning:
			m.running(p, m.now.Wall)
		case at >= 0 && result.Infos[at].State == sandbox.StateExited:
			m.awaitExit(p)
		default:
			m.exit(p, startUnknown())
		}
		m.settle(p)
	})
}

func startUnknown() *recordv1.Exit {
	return &recordv1.Exit{
		Reason:  recordv1.Reason_REASON_START_UNKNOWN,
		Message: "the start was under way when it was last heard of, and no process of it is left; it may have run",
	}
}

// running takes note that the command runs, on both clocks.
func (m *Machine) running(p *placement, at time.Time) {
	p.entry.State = recordv1.JournalState_JOURNAL_STATE_STARTED
	p.entry.StartedAt = at.UnixMilli()
	p.entry.StartedBoottimeNs = m.now.Boot.Nanoseconds()
	p.assignment = nil // all that matters from now on is in the entry
	m.holdStart(p)
	m.watchTimeout(p)
	m.awaitExit(p)
	if p.wish != nil {
		m.stop(p, *p.wish)
	}
}

func (m *Machine) tellStarted(p *placement) {
	if p.started() && m.phase >= PhaseRegistered {
		m.tellPast(int(p.reminders)%(actors.PastHere+1), p.key.Run, &actorv1.Started{
			Run: p.key.Run, Attempt: p.key.Attempt, Placement: p.key.Placement, Node: m.config.ID, At: p.entry.GetStartedAt(),
		})
	}
}
