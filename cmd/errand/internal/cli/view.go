package cli

import (
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// runView is a run in JSON and YAML. It is a contract with scripts: fields may
// be added, none may change or go. It is no message of the API, which has its
// own rules.
type runView struct {
	ID       string            `json:"id"`
	Name     string            `json:"name"`
	App      string            `json:"app"`
	Task     string            `json:"task,omitempty"`
	Status   string            `json:"status"`
	Reason   string            `json:"reason"`
	Message  string            `json:"message"`
	Trigger  string            `json:"trigger"`
	Labels   map[string]string `json:"labels,omitempty"`
	Stopping string            `json:"stopping,omitempty"`
	// Transactions is how many the run has cost the store.
	Transactions int64 `json:"transactions,omitempty"`

	CreatedAt *time.Time `json:"createdAt,omitempty"`
	QueuedAt  *time.Time `json:"queuedAt,omitempty"`
	StartedAt *time.Time `json:"startedAt,omitempty"`
	EndedAt   *time.Time `json:"endedAt,omitempty"`
	// ExitCode is absent unless it was observed from the process.
	ExitCode *int32 `json:"exitCode,omitempty"`

	// Attempt is the number of the current one; the run is not placed before NotBefore.
	Attempt   int32         `json:"attempt,omitempty"`
	NotBefore *time.Time    `json:"notBefore,omitempty"`
	Attempts  []attemptView `json:"attempts"`
	Spec      specView      `json:"spec"`
}

type attemptView struct {
	Number      int32      `json:"number"`
	Node        string     `json:"node"`
	Status      string     `json:"status"`
	StartedAt   *time.Time `json:"startedAt,omitempty"`
	EndedAt     *time.Time `json:"endedAt,omitempty"`
	ExitCode    *int32     `json:"exitCode,omitempty"`
	Signal      int32      `json:"signal"`
	OOMKilled   bool       `json:"oomKilled"`
	Reason      string     `json:"reason"`
	Message     string     `json:"message,omitempty"`
	LogComplete bool       `json:"logComplete"`
	// LogUnwritten is told only of a log that its disk did not take whole.
	LogUnwritten bool       `json:"logUnwritten,omitempty"`
	PlacedAt     *time.Time `json:"placedAt,omitempty"`
	// SafeAt is from when on no copy of an attempt whose end nobody saw can be running, and
	// SafeBy how that is known.
	SafeAt          *time.Time `json:"safeAt,omitempty"`
	SafeBy          string     `json:"safeBy,omitempty"`
	AdoptedAt       *time.Time `json:"adoptedAt,omitempty"`
	MemoryPeakBytes int64      `json:"memoryPeakBytes,omitempty"`
	// Signals are the stop signals that the engine sent, absent when it sent none.
	Signals []sentSignalView `json:"signals,omitempty"`
}

type sentSignalView struct {
	Signal int32      `json:"signal"`
	Name   string     `json:"name"`
	At     *time.Time `json:"at,omitempty"`
	// Delivered is absent when it is not known.
	Delivered *bool  `json:"delivered,omitempty"`
	Reason    string `json:"reason"`
}

// specView is what was asked for. Of the environment it has the names only: the
// values may be secrets, and output ends up in tickets and build logs.
type specView struct {
	Driver        string   `json:"driver,omitempty"`
	Image         string   `json:"image,omitempty"`
	Pull          string   `json:"pull,omitempty"`
	Command       []string `json:"command,omitempty"`
	EnvNames      []string `json:"envNames,omitempty"`
	WorkingDir    string   `json:"workingDir,omitempty"`
	User          string   `json:"user,omitempty"`
	CPUMillis     int64    `json:"cpuMillis,omitempty"`
	MemoryBytes   int64    `json:"memoryBytes,omitempty"`
	PidsLimit     int64    `json:"pidsLimit,omitempty"`
	ReadOnlyRoot  bool     `json:"readOnlyRoot,omitempty"`
	Timeout       string   `json:"timeout,omitempty"`
	StartDeadline string   `json:"startDeadline,omitempty"`
	StopGrace     string   `json:"stopGrace,omitempty"`
	// Retry is absent for a run of one attempt.
	Retry *retryView `json:"retry,omitempty"`
}

// retryView is what is tried again.
type retryView struct {
	Retries       int32    `json:"retries"`
	Only          []string `json:"only,omitempty"`
	Never         []string `json:"never,omitempty"`
	Backoff       string   `json:"backoff"`
	BackoffMax    string   `json:"backoffMax"`
	JitterPercent int32    `json:"jitterPercent"`
	OnNodeLoss    string   `json:"onNodeLoss"`
}

func viewRetry(retry *errandv1.Retry) *retryView {
	if retry == nil {
		return nil
	}
	return &retryView{
		Retries: retry.GetRetries(), Only: retry.GetOnly(), Never: retry.GetNever(),
		Backoff: retry.GetBackoff().AsDuration().String(), BackoffMax: retry.GetBackoffMax().AsDuration().String(),
		JitterPercent: retry.GetJitterPercent(), OnNodeLoss: word(retry.GetOnNodeLoss().String(), "ON_NODE_LOSS_"),
	}
}

// text says it in one line; empty without retries.
func (r *retryView) text() string {
	if r == nil {
		return ""
	}
	text := strconv.Itoa(int(r.Retries))
	if len(r.Only) > 0 {
		text += ", only for " + strings.Join(r.Only, " ")
	}
	if len(r.Never) > 0 {
		text += ", never for " + strings.Join(r.Never, " ")
	}
	text += ", after " + r.Backoff
	if r.BackoffMax != r.Backoff {
		text += " to " + r.BackoffMax
	}
	return text + "; lost: " + r.OnNodeLoss
}

func viewRun(run *errandv1.Run) runView {
	view := runView{
		ID: run.GetId(), Name: run.GetName(), App: run.GetApp(), Task: run.GetTask(),
		Status:       word(run.GetStatus().String(), "STATUS_"),
		Reason:       reasonWord(run.GetReason()),
		Message:      run.GetMessage(),
		Trigger:      word(run.GetTrigger().String(), "TRIGGER_"),
		Labels:       run.GetLabels(),
		Stopping:     reasonWord(run.GetStopping()),
		Transactions: run.GetTransactions(),
		CreatedAt:    instant(run.GetCreatedAt()),
		QueuedAt:     instant(run.GetQueuedAt()),
		StartedAt:    instant(run.GetStartedAt()),
		EndedAt:      instant(run.GetEndedAt()),
		ExitCode:     run.ExitCode,
		Attempts:     make([]attemptView, 0, len(run.GetAttempts())),
		Spec:         viewSpec(run.GetSpec()),
		NotBefore:    instant(run.GetNotBefore()),
		Attempt:      run.GetAttempt(),
	}
	for _, attempt := range run.GetAttempts() {
		view.Attempts = append(view.Attempts, attemptView{
			Number:      attempt.GetNumber(),
			Node:        attempt.GetNode(),
			Status:      word(attempt.GetStatus().String(), "STATUS_"),
			StartedAt:   instant(attempt.GetStartedAt()),
			EndedAt:     instant(attempt.GetEndedAt()),
			ExitCode:    attempt.ExitCode,
			Signal:      attempt.GetSignal(),
			OOMKilled:   attempt.GetOomKilled(),
			Reason:      reasonWord(attempt.GetReason()),
			Message:     attempt.GetMessage(),
			LogComplete: attempt.GetLogComplete(), LogUnwritten: attempt.GetLogUnwritten(),
			Signals: viewSignals(attempt.GetSignals()),

			PlacedAt: instant(attempt.GetPlacedAt()), SafeAt: instant(attempt.GetSafeAt()), SafeBy: attempt.GetSafeBy(),
			AdoptedAt: instant(attempt.GetAdoptedAt()), MemoryPeakBytes: attempt.GetMemoryPeakBytes(),
		})
	}
	return view
}

func viewSignals(signals []*errandv1.SentSignal) []sentSignalView {
	var views []sentSignalView
	for _, sent := range signals {
		views = append(views, sentSignalView{
			Signal: sent.GetSignal(), Name: signalName(sent.GetSignal()), At: instant(sent.GetAt()),
			Delivered: sent.Delivered, Reason: reasonWord(sent.GetReason()),
		})
	}
	return views
}

// signalName is a signal's name without its SIG, and its number if it has none.
func signalName(number int32) string {
	if name := unix.SignalName(syscall.Signal(number)); name != "" {
		return strings.TrimPrefix(name, "SIG")
	}
	return strconv.Itoa(int(number))
}

func viewRuns(runs []*errandv1.Run) []runView {
	views := make([]runView, 0, len(runs))
	for _, run := range runs {
		views = append(views, viewRun(run))
	}
	return views
}

func viewSpec(spec *errandv1.RunSpec) specView {
	view := specView{
		Driver: spec.GetDriver(), Image: spec.GetImage(), Command: spec.GetCommand(),
		WorkingDir: spec.GetWorkingDir(), User: spec.GetUser(),
		CPUMillis: spec.GetCpuMillis(), MemoryBytes: spec.GetMemoryBytes(),
		PidsLimit: spec.GetPidsLimit(), ReadOnlyRoot: spec.GetReadOnlyRoot(),
	}
	view.Pull = strings.ToLower(word(spec.GetPull().String(), "PULL_POLICY_"))
	for name := range spec.GetEnv() {
		view.EnvNames = append(view.EnvNames, name)
	}
	sort.Strings(view.EnvNames)
	view.Retry = viewRetry(spec.GetRetry())
	if spec.GetTimeout() != nil {
		view.Timeout = spec.GetTimeout().AsDuration().String()
	}
	if spec.GetStartDeadline() != nil {
		view.StartDeadline = spec.GetStartDeadline().AsDuration().String()
	}
	if spec.GetStopGrace() != nil {
		view.StopGrace = spec.GetStopGrace().AsDuration().String()
	}
	return view
}

// word is an enum value as the contract spells it; empty when unset.
func word(value, prefix string) string {
	value = strings.TrimPrefix(value, prefix)
	if value == "UNSPECIFIED" {
		return ""
	}
	return value
}

func reasonWord(reason errandv1.Reason) string { return word(reason.String(), "REASON_") }

// instant is a time in UTC, which JSON shows as RFC 3339; nil when unset.
func instant(stamp *timestamppb.Timestamp) *time.Time {
	if stamp == nil {
		return nil
	}
	at := stamp.AsTime()
	return &at
}
