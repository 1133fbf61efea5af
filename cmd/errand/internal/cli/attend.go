package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

const (
	// createGrace is how long an interrupted errand waits for the answer to a
	// creation that is under way: it can cancel only what it knows.
	createGrace = 5 * time.Second
	// holdPauseDefault is how long a run may wait before somebody at a terminal is
	// told why, and the time between two such words.
	holdPauseDefault = 3 * time.Second
)

// causePulling is the word of the API for an image that is being pulled.
const causePulling = "PULLING"

// errLeft ends an attendance that the user has left.
var errLeft = errors.New("left")

// attendance is one `errand run` that stays with its run: create, show the
// output until it ends, wait for the outcome. The first interrupt cancels the
// run, the second one leaves it.
type attendance struct {
	app *app
	c   *connection
	// typing gives the run input; nil for none.
	typing *typing
	// ends tells that the run ends with this attendance.
	ends bool
	// tail is how many lines of what was written before are shown; 0 for all.
	tail int32
}

func (t *attendance) run(ctx context.Context, request *errandv1.CreateRunRequest) error {
	interrupts := make(chan os.Signal, 2)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	if t.ends {
		signal.Notify(interrupts, syscall.SIGHUP)
	}
	defer signal.Stop(interrupts)
	run, interrupted, err := t.create(ctx, interrupts, request)
	if err != nil {
		return err
	}
	return t.stay(ctx, run, func(ctx context.Context, leave context.CancelCauseFunc, id string) (stop func()) {
		var obeying sync.WaitGroup
		obeying.Go(func() { t.obey(ctx, interrupts, interrupted, leave, id) })
		return obeying.Wait
	})
}

// stay shows the output of a run, and gives it input, until it has ended or the user has
// left. obey begins to do what the user asks for by signals, until its context ends;
// stop is called then.
func (t *attendance) stay(ctx context.Context, run *errandv1.Run, obey func(context.Context, context.CancelCauseFunc, string) (stop func())) error {
	// Caught, so that a closed pipe is an error to be told, not a silent death
	// that leaves the run behind.
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)
	defer signal.Stop(pipes)
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	stopObeying := obey(ctx, leave, run.GetId())
	var watching sync.WaitGroup
	if t.typing != nil {
		watching.Go(func() { t.typing.run(ctx, leave, run.GetId()) })
	}
	if t.app.holdPause > 0 {
		watching.Go(func() { t.tellHolds(ctx, run.GetId()) })
	}
	code, err := t.watch(ctx, run)
	leave(nil)
	stopObeying()
	watching.Wait()
	var input *inputFailure
	taken := errors.As(context.Cause(ctx), &input) && input.taken()
	if err != nil && t.ends && !taken {
		t.end(ctx, run.GetId())
	}
	switch {
	case err != nil && errors.As(context.Cause(ctx), &input):
		return t.lost(input.err, run)
	case errors.Is(err, errLeft), errors.Is(err, errDetached):
		return t.leftOf(err, run)
	case errors.Is(err, errPipe) && !t.ends:
		t.app.note("nobody reads the output any more; run %s goes on\nfollow it with 'errand logs -f %s', end it with 'errand cancel %s'",
			run.GetId(), run.GetId(), run.GetId())
		return err
	case err != nil:
		return t.lost(err, run)
	case code != 0:
		return exitStatus(code)
	}
	return nil
}

// create makes the run. An interrupt meanwhile does not stop it at once: whether
// the run exists is known only from the answer.
func (t *attendance) create(ctx context.Context, interrupts <-chan os.Signal, request *errandv1.CreateRunRequest) (*errandv1.Run, bool, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	type answer struct {
		run *errandv1.Run
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		run, err := t.c.patient.Submit(ctx, request)
		answers <- answer{run, err}
	}()
	interrupted := false
	for {
		select {
		case <-interrupts:
			if interrupted {
				cancel(errLeft)
				continue
			}
			interrupted = true
			timer := time.AfterFunc(createGrace, func() { cancel(errLeft) })
			defer timer.Stop()
		case got := <-answers:
			if errors.Is(got.err, errLeft) {
				f := broken(codeInterrupted, "interrupted before %s answered: whether the run was created is not known", t.c.patient.Address())
				f.exit = ExitCanceled
				f.hint = "'errand runs' shows it if it was."
				return nil, true, f
			}
			return got.run, interrupted, t.c.explainCreate(got.err)
		}
	}
}

// obey does what interrupts ask for until ctx ends.
func (t *attendance) obey(ctx context.Context, interrupts <-chan os.Signal, interrupted bool, leave context.CancelCauseFunc, id string) {
	var canceling sync.WaitGroup
	defer canceling.Wait()
	for {
		if interrupted {
			t.app.note("canceling run %s; interrupt again to leave it", id)
			canceling.Go(func() { t.cancel(ctx, id) })
			break
		}
		select {
		case <-ctx.Done():
			return
		case <-interrupts:
			interrupted = true
		}
	}
	select {
	case <-ctx.Done():
	case <-interrupts:
		leave(errLeft)
	}
}

func (t *attendance) cancel(ctx context.Context, id string) {
	_, err := t.c.patient.Cancel(ctx, &errandv1.CancelRunRequest{Id: id, By: t.app.caller()})
	// One that has ended by itself can not be canceled.
	if err != nil && connect.CodeOf(err) != connect.CodeFailedPrecondition && ctx.Err() == nil {
		t.app.note("run %s could not be canceled: %s", id, t.c.explain(err))
	}
}

// tellHolds says what keeps a run from its start, each time that it is something
// else, until it starts or ctx ends. That it can not be asked is for others to tell.
func (t *attendance) tellHolds(ctx context.Context, id string) {
	last := ""
	var pullTold time.Time
	look := time.NewTicker(t.app.holdPause)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		run, err := t.c.once.Get(ctx, id)
		if err != nil {
			continue
		}
		if run.GetStatus() != errandv1.Status_STATUS_PENDING {
			return
		}
		if hold := run.GetMessage(); hold != "" && hold != last {
			last = hold
			t.app.note("run %s waits: %s", id, cellText(hold))
			continue
		}
		// How far a pull is changes all the time.
		if now := t.app.now(); now.Sub(pullTold) >= pullLineEvery {
			if pull := t.pulling(ctx, id); pull != "" {
				pullTold = now
				t.app.note("run %s waits: %s", id, cellText(pull))
			}
		}
	}
}

// pulling is what its node says of the image that a run waits for; empty if it waits for
// none, or that can not be asked.
func (t *attendance) pulling(ctx context.Context, id string) string {
	explained, err := t.c.once.Explain(ctx, id)
	if err != nil {
		return ""
	}
	for _, cause := range explained.GetCauses() {
		if cause.GetCode() == causePulling {
			return cause.GetMessage()
		}
	}
	return ""
}

// watch shows the output of the run and returns the exit code for its outcome.
func (t *attendance) watch(ctx context.Context, run *errandv1.Run) (int, error) {
	id := run.GetId()
	shown, logErr := t.show(ctx, id, 0)
	if logErr != nil && !t.readable(ctx, logErr) {
		return 0, logErr
	}
	run, err := t.c.wait(ctx, id, 0)
	if err != nil {
		return 0, err
	}
	t.app.noteIncomplete(run, shown.attempt, shown.end, shown.printer)
	for _, later := range run.GetAttempts() {
		if logErr != nil || shown.attempt == 0 || later.GetNumber() <= shown.attempt {
			continue
		}
		if shown, logErr = t.show(ctx, id, later.GetNumber()); logErr != nil && !t.readable(ctx, logErr) {
			return 0, logErr
		}
		t.app.noteIncomplete(run, shown.attempt, shown.end, shown.printer)
	}
	if logErr != nil {
		t.app.note("the output of run %s could not be read to its end: %s", id, logErr)
	}
	t.tell(run)
	return exitCodeOf(run), nil
}

// readable tells whether a run may be waited for although its log failed: its
// outcome counts more than its output.
func (t *attendance) readable(ctx context.Context, err error) bool {
	var f *failure
	return ctx.Err() == nil && errors.As(err, &f) && f.code != codeOutput
}

// shown is what became of one attempt's log.
type shown struct {
	attempt int32
	end     *errandv1.LogEnd
	printer *logPrinter
}

// show shows the log of one attempt, 0 for the current one, to its end.
func (t *attendance) show(ctx context.Context, id string, attempt int32) (shown, error) {
	printer := t.app.printer()
	reading := &logReading{
		c: t.c, client: t.c.patient, show: printer.print,
		request: &errandv1.LogsRequest{Id: id, Attempt: attempt, Follow: true, TailLines: t.tailOf(attempt)},
	}
	err := reading.read(ctx)
	var f *failure
	if errors.As(err, &f) && attempt == 0 && (f.class == connect.CodeNotFound || f.class == connect.CodeFailedPrecondition) {
		err = nil // a run that never had an attempt has no log
	}
	return shown{attempt: reading.request.GetAttempt(), end: reading.end, printer: printer}, err
}

// tailOf is how many lines of an attempt are shown of what is there: of one that was not
// there before all are.
func (t *attendance) tailOf(attempt int32) int32 {
	if attempt > 0 {
		return 0
	}
	return t.tail
}

// tell says on stderr how a run ended whose exit code does not say it all.
func (t *attendance) tell(run *errandv1.Run) {
	if plainExit(run) {
		return
	}
	f := outcome(run)
	f.write(t.app.stderr, t.app.output == formatJSON)
}

// outcome is how a run ended, in one sentence.
func outcome(run *errandv1.Run) *failure {
	view := viewRun(run)
	message := "run " + view.ID + " " + view.Status
	code := view.Status
	if view.Reason != "" {
		code = view.Reason
		if view.Reason != view.Status {
			message += ": " + view.Reason
		}
	}
	if view.Message != "" {
		message += ": " + view.Message
	}
	return &failure{exit: exitCodeOf(run), code: code, message: message}
}

// lost adds to a failure how to come back to the run.
func (t *attendance) lost(err error, run *errandv1.Run) error {
	err = t.c.explain(err)
	var f *failure
	if errors.As(err, &f) {
		back := "Run " + run.GetId() + " was created; 'errand wait " + run.GetId() + "' waits for it, 'errand logs " + run.GetId() + "' shows its output."
		if f.hint != "" {
			back = f.hint + "\n" + back
		}
		f.hint = back
	}
	return err
}
