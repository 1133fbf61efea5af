package nodes_test

import (
	"context"
	"strings"
	"testing"

	"github.com/errand-run/errand/actors"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
)

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func (w *world) started(ctx context.Context, config nodes.Config) *daemon {
	w.t.Helper()
	d := w.open(config)
	if err := d.start(ctx); err != nil {
		d.close(w.t)
		w.t.Fatal(err)
	}
	return d
}

func TestNodeRestartAdoptsWhatRunsAndKeepsItsSession(t *testing.T) {
	w, ctx := newWorld(t), within(t)
	d := w.started(ctx, w.config("boot-1"))
	session := d.node.Status().Session
	lasting := w.create(ctx, d, "after=3s", "exit=7")
	quick := w.create(ctx, d, "after=300ms", "exit=5")
	w.await(ctx, lasting, status(recordv1.Status_STATUS_RUNNING))
	w.await(ctx, quick, status(recordv1.Status_STATUS_RUNNING))
	d.close(t)

	d = w.started(ctx, w.config("boot-1"))
	defer d.close(t)
	if got := d.node.Status().Session; got != session {
		t.Errorf("session %d, before the restart %d", got, session)
	}
	for run, code := range map[string]int32{lasting: 7, quick: 5} {
		record := w.await(ctx, run, terminal)
		if record.ExitCode == nil || record.GetExitCode() != code || len(record.GetAttempts()) != 1 {
			t.Errorf("run %s: %v", run, record)
		}
	}
	w.clean(ctx, d)
}

func TestNodeAfterARebootReportsWhatWasLostWithoutACode(t *testing.T) {
	w, ctx := newWorld(t), within(t)
	d := w.started(ctx, w.config("boot-1"))
	session := d.node.Status().Session
	run := w.create(ctx, d, "after=1h")
	w.await(ctx, run, status(recordv1.Status_STATUS_RUNNING))
	d.close(t)

	d = w.started(ctx, w.config("boot-2"))
	defer d.close(t)
	if got := d.node.Status().Session; got == session {
		t.Errorf("session %d outlived a reboot", got)
	}
	record := w.await(ctx, run, terminal)
	if record.GetStatus() != recordv1.Status_STATUS_FAILED || record.GetReason() != recordv1.Reason_REASON_SANDBOX_LOST || record.ExitCode != nil {
		t.Errorf("run: %v", record)
	}
	w.clean(ctx, d)
}

func TestNodeWhoseNameIsAnotherMachinesDoesNotStart(t *testing.T) {
	w, ctx := newWorld(t), within(t)
	w.started(ctx, w.config("boot-1")).close(t)
	w.dir = t.TempDir()
	d := w.open(w.config("boot-1"))
	defer d.close(t)
	if err := d.start(ctx); err == nil || !strings.Contains(err.Error(), "another machine has the name") {
		t.Errorf("error %v", err)
	}
}

func TestNodeWithTheJournalOfAnotherNodeDoesNotStart(t *testing.T) {
	w, ctx := newWorld(t), within(t)
	w.started(ctx, w.config("boot-1")).close(t)
	config := w.config("boot-1")
	config.ID = "n2"
	d := w.open(config)
	defer d.close(t)
	if err := d.node.Recover(ctx); err == nil || !strings.Contains(err.Error(), `node "n1"`) {
		t.Errorf("error %v", err)
	}
}

func TestNodeStopsWhatIsCanceledAndKeepsTheCode(t *testing.T) {
	w, ctx := newWorld(t), within(t)
	d := w.started(ctx, w.config("boot-1"))
	defer d.close(t)
	for name, test := range map[string]struct {
		command []string
		force   bool
		code    int32
	}{
		"by TERM":         {command: []string{"after=1h"}, code: 128 + 15},
		"by KILL at once": {command: []string{"after=1h", "ignore-term"}, force: true, code: 128 + 9},
		"with a leftover": {command: []string{"after=1h", "leftover"}, code: 128 + 15},
	} {
		t.Run(name, func(t *testing.T) {
			run := w.create(ctx, d, test.command...)
			w.await(ctx, run, status(recordv1.Status_STATUS_RUNNING))
			answer, err := d.node.Router().Ask(ctx, actors.KindRun, run, &actorv1.Cancel{Run: run, By: "test", Force: test.force})
			if err != nil || answer.(*actorv1.Canceled).GetOutcome() != actorv1.Canceled_OUTCOME_RECORDED {
				t.Fatalf("cancel: %v, %v", answer, err)
			}
			record := w.await(ctx, run, terminal)
			if record.GetStatus() != recordv1.Status_STATUS_CANCELED || record.GetExitCode() != test.code {
				t.Errorf("run: %v", record)
			}
		})
	}
	w.clean(ctx, d)
}

func TestNodeReportsWhatCanNotBeStarted(t *testing.T) {
	w, ctx := newWorld(t), within(t)
	d := w.started(ctx, w.config("boot-1"))
	defer d.close(t)
	run := w.create(ctx, d, "start-error=NOT_FOUND")
	record := w.await(ctx, run, terminal)
	if record.GetStatus() != recordv1.Status_STATUS_FAILED || record.GetReason() != recordv1.Reason_REASON_NOT_FOUND || record.ExitCode != nil {
		t.Errorf("run: %v", record)
	}
	run = w.create(ctx, d, "nonsense")
	record = w.await(ctx, run, terminal)
	if record.GetStatus() != recordv1.Status_STATUS_FAILED || record.GetReason() != recordv1.Reason_REASON_START_ERROR || record.ExitCode != nil {
		t.Errorf("run: %v", record)
	}
	w.clean(ctx, d)
}
