package api

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// The enums of records and API have the same numbers; a test compares their names
// one by one.
func publicStatus(status recordv1.Status) errandv1.Status     { return errandv1.Status(status) }
func publicReason(reason recordv1.Reason) errandv1.Reason     { return errandv1.Reason(reason) }
func publicTrigger(trigger recordv1.Trigger) errandv1.Trigger { return errandv1.Trigger(trigger) }
func recordTrigger(trigger errandv1.Trigger) recordv1.Trigger { return recordv1.Trigger(trigger) }
func publicPull(pull recordv1.PullPolicy) errandv1.PullPolicy { return errandv1.PullPolicy(pull) }

// publicRun shows a record at a revision as users see it.
func publicRun(run *recordv1.Run, at records.KV) *errandv1.Run {
	shown := &errandv1.Run{
		Id:        run.GetId(),
		App:       run.GetApp(),
		Task:      run.GetTask(),
		Name:      run.GetName(),
		Labels:    run.GetLabels(),
		Trigger:   publicTrigger(run.GetTrigger()),
		Spec:      publicSpec(run.GetSpec()),
		Status:    publicStatus(run.GetStatus()),
		Reason:    publicReason(run.GetReason()),
		Message:   run.GetMessage(),
		CreatedAt: timeOf(run.GetCreatedAt()),
		QueuedAt:  timeOf(run.GetQueuedAt()),
		StartedAt: timeOf(run.GetStartedAt()),
		EndedAt:   timeOf(run.GetEndedAt()),
		ExitCode:  run.ExitCode,
		Revision:  at.Mod,

		Transactions: at.Version,
		Attempt:      run.GetAttempt(),
	}
	if !records.Terminal(run.GetStatus()) {
		shown.Stopping = publicReason(run.GetWish().GetReason())
		if shown.Reason == errandv1.Reason_REASON_UNSPECIFIED && shown.Message == "" {
			// What keeps a pending run from its start (G11).
			if shown.Message = run.GetHoldMessage(); shown.Message == "" {
				shown.Message = waitsForAttempt(run)
			}
		}
		if run.GetPlacement() == nil {
			shown.NotBefore = timeOf(run.GetNotBefore())
		}
	}
	for _, attempt := range run.GetAttempts() {
		shown.Attempts = append(shown.Attempts, publicAttempt(attempt))
	}
	return shown
}

func publicAttempt(attempt *recordv1.Attempt) *errandv1.Attempt {
	return &errandv1.Attempt{
		Number:      attempt.GetNumber(),
		Node:        attempt.GetNode(),
		StartedAt:   timeOf(attempt.GetStartedAt()),
		EndedAt:     timeOf(attempt.GetEndedAt()),
		ExitCode:    attempt.ExitCode,
		Signal:      attempt.GetSignal(),
		OomKilled:   attempt.GetOomKilled(),
		Reason:      publicReason(attempt.GetReason()),
		Message:     attempt.GetMessage(),
		LogComplete: attempt.GetLogComplete(), LogUnwritten: attempt.GetLogUnwritten(),
		Status:  publicStatus(attempt.GetStatus()),
		Signals: publicSignals(attempt.GetSignals()),

		PlacedAt:        timeOf(attempt.GetPlacedAt()),
		SafeAt:          timeOf(attempt.GetSafeAt()),
		SafeBy:          records.Word(attempt.GetSafeBy()),
		AdoptedAt:       timeOf(attempt.GetAdoptedAt()),
		MemoryPeakBytes: attempt.GetMemoryPeakBytes(),
	}
}

func publicSignals(signals []*recordv1.SentSignal) []*errandv1.SentSignal {
	var shown []*errandv1.SentSignal
	for _, sent := range signals {
		shown = append(shown, &errandv1.SentSignal{
			Signal: sent.GetSignal(), At: timeOf(sent.GetAt()), Delivered: sent.Delivered, Reason: reasonOfStop(sent.GetCause()),
		})
	}
	return shown
}

// reasonOfStop is the public word for why a command was stopped.
func reasonOfStop(cause recordv1.StopCause) errandv1.Reason {
	switch cause {
	case recordv1.StopCause_STOP_CAUSE_CANCEL:
		return errandv1.Reason_REASON_CANCELED
	case recordv1.StopCause_STOP_CAUSE_TIMEOUT:
		return errandv1.Reason_REASON_TIMEOUT
	case recordv1.StopCause_STOP_CAUSE_START_DEADLINE:
		return errandv1.Reason_REASON_START_DEADLINE
	case recordv1.StopCause_STOP_CAUSE_DRAIN:
		return errandv1.Reason_REASON_DRAINED
	case recordv1.StopCause_STOP_CAUSE_FENCE:
		return errandv1.Reason_REASON_NODE_FENCED
	default:
		return errandv1.Reason_REASON_UNSPECIFIED
	}
}

func publicSpec(spec *recordv1.Spec) *errandv1.RunSpec {
	if spec == nil {
		return nil
	}
	shown := &errandv1.RunSpec{
		Driver:        spec.GetDriver(),
		Image:         spec.GetImage(),
		Command:       spec.GetCommand(),
		WorkingDir:    spec.GetWorkingDir(),
		User:          spec.GetUser(),
		CpuMillis:     spec.GetCpuMillis(),
		MemoryBytes:   spec.GetMemoryBytes(),
		PidsLimit:     spec.GetPidsLimit(),
		ReadOnlyRoot:  spec.GetReadOnlyRoot(),
		Timeout:       durationOf(spec.GetTimeoutMs()),
		StartDeadline: durationOf(spec.GetStartDeadlineMs()),
		StopGrace:     durationOf(spec.GetStopGraceMs()),
		Retry:         publicRetry(spec.GetRetry()),
		Pull:          publicPull(spec.GetPull()),
		Stdin:         spec.GetStdin(),
		Terminal:      spec.GetTerminal(),
	}
	if len(spec.GetEnv()) > 0 {
		shown.Env = make(map[string]string, len(spec.GetEnv()))
	}
	for _, entry := range spec.GetEnv() {
		key, value, _ := strings.Cut(entry, "=")
		shown.Env[key] = value
	}
	return shown
}

func publicNode(name string, session *recordv1.NodeSession, draining bool, sandboxes int64) *errandv1.Node {
	return &errandv1.Node{
		Id:           name,
		Uuid:         session.GetUuid(),
		Address:      session.GetAddress(),
		Version:      session.GetVersion(),
		Drivers:      session.GetDrivers(),
		CpuMillis:    session.GetCpuMillis(),
		MemoryBytes:  session.GetMemoryBytes(),
		SandboxesMax: session.GetSandboxesMax(),
		Draining:     draining,
		RegisteredAt: timeOf(session.GetRegisteredAt()),
		BootId:       session.GetBootId(),
		Sandboxes:    sandboxes,
	}
}

// timeOf leaves a time that was never set absent.
func timeOf(ms int64) *timestamppb.Timestamp {
	if ms == 0 {
		return nil
	}
	return timestamppb.New(time.UnixMilli(ms))
}

func durationOf(ms int64) *durationpb.Duration {
	return durationpb.New(time.Duration(ms) * time.Millisecond)
}
