package boot_test

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"go.uber.org/fx"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/boot"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// open is a driver that lets into its sandboxes whoever asks.
type open struct{ sandbox.Driver }

func (open) Exec(_ context.Context, _ string, e sandbox.Exec) (sandbox.ExecEnd, error) {
	e.Started()
	input, err := io.ReadAll(e.Stdin)
	if err != nil {
		return sandbox.ExecEnd{}, err
	}
	_, err = e.Stdout.Write(bytes.ToUpper(input))
	return sandbox.ExecEnd{Code: 9}, err
}

// typed is a driver whose sandboxes take input, which it keeps.
type typed struct {
	sandbox.Driver
	text chan string
}

func (typed) Name() string { return "typed" }

func (d typed) OpenInput(context.Context, string) (sandbox.Input, error) { return typedInput(d), nil }

type typedInput typed

func (d typedInput) Write(p []byte) (int, error) { d.text <- string(p); return len(p), nil }
func (typedInput) End() error                    { return nil }
func (typedInput) Resize(_, _ uint16) error      { return nil }
func (typedInput) Signal(int) error              { return nil }
func (typedInput) Close() error                  { return nil }

// TestAttachGoesThroughTheClientOfTheProcess, and ends with the run.
func TestAttachGoesThroughTheClientOfTheProcess(t *testing.T) {
	text := make(chan string, 1)
	h := newHost(silent(t), fx.Replace(boot.Parts{
		Drivers: func(_ context.Context, enabled []sandbox.Driver) ([]sandbox.Driver, error) {
			return []sandbox.Driver{typed{enabled[0], text}}, nil
		},
	})).start(t)
	ctx := within(t, time.Minute)
	c := h.node.Client()
	run, err := c.Submit(ctx, &errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{Command: []string{"after=1h"}, Stdin: true}})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Attach(ctx, client.Attach{Run: run.GetId(), Stdin: strings.NewReader("words")}) }()
	select {
	case got := <-text:
		if got != "words" {
			t.Errorf("the command was given %q", got)
		}
	case err := <-ended:
		t.Fatalf("attach: %v", err)
	}
	if _, err := c.Cancel(ctx, &errandv1.CancelRunRequest{Id: run.GetId(), Force: true}); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("attach: %v", err)
	}
}

// TestExecGoesThroughTheClientOfTheProcess: both sides send at the same time, without a
// socket; and a driver that lets nobody in is said to be one.
func TestExecGoesThroughTheClientOfTheProcess(t *testing.T) {
	for _, test := range []struct {
		name string
		open bool
	}{{"a driver that lets others in", true}, {"one that does not", false}} {
		t.Run(test.name, func(t *testing.T) {
			parts := boot.Parts{}
			if test.open {
				parts.Drivers = func(_ context.Context, enabled []sandbox.Driver) ([]sandbox.Driver, error) {
					return []sandbox.Driver{open{enabled[0]}}, nil
				}
			}
			h := newHost(silent(t), fx.Replace(parts)).start(t)
			ctx := within(t, time.Minute)
			c := h.node.Client()
			run, err := c.Submit(ctx, &errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{Command: []string{"after=1h"}}})
			if err != nil {
				t.Fatal(err)
			}
			for state, err := range c.Watch(ctx, run.GetId()) {
				if err != nil {
					t.Fatal(err)
				}
				if state.GetStatus() == errandv1.Status_STATUS_RUNNING {
					break
				}
			}
			var stdout bytes.Buffer
			exited, err := c.Exec(ctx, client.Exec{
				Start: &errandv1.ExecStart{Id: run.GetId(), Command: []string{"upper"}},
				Stdin: strings.NewReader("words"), Stdout: &stdout,
			})
			if test.open && (err != nil || exited.GetCode() != 9 || stdout.String() != "WORDS") {
				t.Errorf("exec: %v, %v, stdout %q", exited, err, stdout.String())
			}
			if !test.open && client.CodeOf(err) != codes.NotSupported {
				t.Errorf("exec: %v", err)
			}
			if _, err := c.Cancel(ctx, &errandv1.CancelRunRequest{Id: run.GetId(), Force: true}); err != nil {
				t.Error(err)
			}
			if _, err := c.Wait(ctx, run.GetId()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAStopGraceOfNothingKillsAtOnce(t *testing.T) {
	h := newHost(silent(t)).start(t)
	ctx := within(t, time.Minute)
	c := h.node.Client()
	run, err := c.Submit(ctx, &errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{Command: []string{"after=1h", "ignore-term"}, StopGrace: durationpb.New(0)}})
	if err != nil {
		t.Fatal(err)
	}
	for state, err := range c.Watch(ctx, run.GetId()) {
		if err != nil {
			t.Fatal(err)
		}
		if state.GetStatus() == errandv1.Status_STATUS_RUNNING {
			if _, err := c.Cancel(ctx, &errandv1.CancelRunRequest{Id: run.GetId()}); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	run, err = c.Wait(ctx, run.GetId())
	if err != nil {
		t.Fatal(err)
	}
	signals := run.GetAttempts()[0].GetSignals()
	if run.GetStatus() != errandv1.Status_STATUS_CANCELED || len(signals) != 2 || signals[1].GetSignal() != 9 ||
		signals[1].GetAt().AsTime().Sub(signals[0].GetAt().AsTime()) > 5*time.Second {
		t.Errorf("%s %v", run.GetStatus(), signals)
	}
}
