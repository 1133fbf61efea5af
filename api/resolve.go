package api

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// The defaults of a run that set nothing else.
const (
	TimeoutDefault       = 8 * time.Hour
	StartDeadlineDefault = 5 * time.Minute
	StopGraceDefault     = 10 * time.Second
)

// resolved is a request that was found valid: everything of the record but its id,
// which draws on randomness.
type resolved struct {
	app  string
	key  string
	run  *recordv1.Run
	hash []byte
	// wait is how long the caller stays for the run's end; 0 is not at all.
	wait time.Duration
}

// resolve checks a request and fills in every default. drivers are those that are
// enabled, the default one first. It returns the violations in the order of the
// fields; with any, the rest does not count.
func resolve(request *errandv1.CreateRunRequest, drivers []string, nowMs int64) (resolved, []Violation) {
	c := &checker{}
	app := request.GetApp()
	if app == "" {
		app = records.DefaultApp
	}
	if err := records.CheckName(app); err != nil {
		c.add("app", "%s", err)
	}
	c.words("name", request.GetName(), nameRunesMax)
	c.labels("labels", request.GetLabels())
	trigger := c.trigger(request.GetTrigger())
	c.key(request.GetIdempotencyKey())
	spec := c.spec(request.GetSpec(), trigger, drivers)
	wait := c.wait(request.GetWait())
	if len(c.violations) > 0 {
		return resolved{}, c.violations
	}
	return resolved{
		app:  app,
		key:  request.GetIdempotencyKey(),
		hash: hashOf(request, app, trigger),
		wait: wait,
		run: &recordv1.Run{
			App:       app,
			Name:      request.GetName(),
			Labels:    request.GetLabels(),
			Trigger:   recordTrigger(trigger),
			Spec:      spec,
			Status:    recordv1.Status_STATUS_PENDING,
			CreatedAt: nowMs,
			QueuedAt:  nowMs,
			Attempt:   1,
			MinWriter: records.MinWriter(spec),
		},
	}, nil
}

// hashOf identifies what a request asks for, so that a key used again for
// something else is noticed. The key itself and how long the caller stays are left
// out, and what is a default is the same as if it had been spelled out.
func hashOf(request *errandv1.CreateRunRequest, app string, trigger errandv1.Trigger) []byte {
	body := proto.CloneOf(request)
	body.IdempotencyKey, body.App, body.Trigger, body.Wait = "", app, trigger, nil
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(body)
	if err != nil {
		// Texts were checked to be UTF-8, nothing else can fail.
		panic(fmt.Sprintf("encode a checked request: %v", err))
	}
	sum := sha256.Sum256(data)
	return sum[:]
}

func (c *checker) trigger(trigger errandv1.Trigger) errandv1.Trigger {
	switch trigger {
	case errandv1.Trigger_TRIGGER_UNSPECIFIED:
		return errandv1.Trigger_TRIGGER_API
	case errandv1.Trigger_TRIGGER_MANUAL, errandv1.Trigger_TRIGGER_API, errandv1.Trigger_TRIGGER_DEPLOY, errandv1.Trigger_TRIGGER_CONSOLE:
		return trigger
	case errandv1.Trigger_TRIGGER_SCHEDULE:
		c.add("trigger", "SCHEDULE is kept for runs that a schedule makes")
	default:
		c.add("trigger", "must be MANUAL, API, DEPLOY or CONSOLE, is %d", trigger)
	}
	return trigger
}

func (c *checker) spec(spec *errandv1.RunSpec, trigger errandv1.Trigger, drivers []string) *recordv1.Spec {
	if spec == nil {
		c.add("spec", "is missing")
		return nil
	}
	driver := c.driver(spec.GetDriver(), drivers)
	c.image(driver, spec.GetImage())
	c.command(driver, spec.GetCommand())
	c.env(spec.GetEnv())
	c.workingDir(spec.GetWorkingDir())
	c.user(spec.GetUser())
	c.resources(spec)
	c.readOnlyRoot(driver, spec.GetReadOnlyRoot())
	made := &recordv1.Spec{
		Driver:          driver,
		Image:           spec.GetImage(),
		Command:         spec.GetCommand(),
		Env:             sortedEnv(spec.GetEnv()),
		WorkingDir:      spec.GetWorkingDir(),
		User:            spec.GetUser(),
		CpuMillis:       spec.GetCpuMillis(),
		MemoryBytes:     spec.GetMemoryBytes(),
		PidsLimit:       spec.GetPidsLimit(),
		ReadOnlyRoot:    spec.GetReadOnlyRoot(),
		TimeoutMs:       c.duration("spec.timeout", spec.GetTimeout(), TimeoutDefault, timeoutMax),
		StartDeadlineMs: c.duration("spec.start_deadline", spec.GetStartDeadline(), StartDeadlineDefault, startDeadlineMax),
		StopGraceMs:     c.span("spec.stop_grace", spec.GetStopGrace(), StopGraceDefault, stopGraceMax),
		Retry:           c.retry(trigger, spec.GetRetry()),
		Pull:            c.pull(driver, spec.GetPull()),
		Stdin:           spec.GetStdin(),
		Terminal:        spec.GetTerminal(),
	}
	c.input(trigger, made)
	if len(c.violations) == 0 {
		if size := proto.Size(made); size > specBytesMax {
			c.add("spec", "is %d bytes in all, the most is %d", size, specBytesMax)
		}
	}
	return made
}

// sortedEnv makes the stored form, the same for the same variables.
func sortedEnv(env map[string]string) []string {
	entries := make([]string, 0, len(env))
	for key, value := range env {
		entries = append(entries, key+"="+value)
	}
	slices.SortFunc(entries, func(a, b string) int {
		keyA, _, _ := strings.Cut(a, "=")
		keyB, _, _ := strings.Cut(b, "=")
		return strings.Compare(keyA, keyB)
	})
	return entries
}

// wait returns how long the caller stays. Any length is allowed.
func (c *checker) wait(given *durationpb.Duration) time.Duration {
	if given == nil {
		return 0
	}
	d := given.AsDuration()
	if given.CheckValid() != nil || d < 0 {
		c.add("wait", "must not be below 0, is %s", d)
	}
	return d
}

// duration is a span that is above 0.
func (c *checker) duration(field string, given *durationpb.Duration, standard, most time.Duration) int64 {
	if d := given.AsDuration(); given != nil && given.CheckValid() == nil && d <= 0 {
		c.add(field, "must be above 0, is %s", d)
		return 0
	}
	return c.span(field, given, standard, most)
}

// span returns milliseconds, rounded up so that nothing above 0 becomes 0.
func (c *checker) span(field string, given *durationpb.Duration, standard, most time.Duration) int64 {
	if given == nil {
		return standard.Milliseconds()
	}
	if err := given.CheckValid(); err != nil {
		c.add(field, "is not a duration: %d s and %d ns", given.GetSeconds(), given.GetNanos())
		return 0
	}
	d := given.AsDuration()
	switch {
	case d < 0:
		c.add(field, "must not be below 0, is %s", d)
	case d > most:
		c.add(field, "must be at most %s, is %s", most, d)
	}
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
