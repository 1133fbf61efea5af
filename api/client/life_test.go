package client_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/api/fakeapi"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/messages/errand/v1/errandv1connect"
)

func TestRunIsOneCallForTheWholeLife(t *testing.T) {
	s := startFake(t, func(s *fakeapi.Server) { s.Script = func(l *fakeapi.Live) { l.Start(); l.Exit(7) } })
	c := newClient(t, client.Config{Address: s.URL()})
	request := &errandv1.CreateRunRequest{Name: "n", Labels: map[string]string{"a": "b"}, Spec: &errandv1.RunSpec{Image: "busybox"}}
	before := proto.CloneOf(request)
	run, err := c.Run(within(t, 2*time.Minute), request)
	if err != nil || run.GetExitCode() != 7 || run.GetName() != "n" || run.GetLabels()["a"] != "b" {
		t.Errorf("%v, %v", run, err)
	}
	if !proto.Equal(before, request) {
		t.Errorf("the request was changed: %v", request)
	}
	if created, waited := s.Calls(errandv1connect.RunServiceCreateProcedure), s.Calls(errandv1connect.RunServiceWaitProcedure); created != 1 || waited != 0 {
		t.Errorf("%d creations and %d waits", created, waited)
	}
}

func TestRunSurvivesALostAnswerAndARestartOfTheNode(t *testing.T) {
	goOn := make(chan struct{})
	s := startFake(t, func(s *fakeapi.Server) {
		s.LoseAnswers = 1
		s.Script = func(l *fakeapi.Live) { l.Start(); <-goOn; l.Exit(3) }
	})
	ctx := within(t, 2*time.Minute)
	c := newClient(t, client.Config{Address: s.URL()})
	type answer struct {
		run *errandv1.Run
		err error
	}
	answers := make(chan answer, 1)
	go func() {
		run, err := c.Run(ctx, &errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{Image: "busybox"}})
		answers <- answer{run, err}
	}()
	create := errandv1connect.RunServiceCreateProcedure
	if err := s.Await(ctx, func() bool { return s.Calls(create) >= 2 }); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	if err := s.Await(ctx, func() bool { return s.Calls(create) >= 3 }); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	if got := <-answers; got.err != nil || got.run.GetExitCode() != 3 {
		t.Errorf("%v, %v", got.run, got.err)
	}
	if runs := s.Runs(); len(runs) != 1 {
		t.Errorf("%d runs", len(runs))
	}
}

func TestSubmitDoesNotWaitWhateverTheRequestSays(t *testing.T) {
	s := startFake(t, nil)
	c := newClient(t, client.Config{Address: s.URL()})
	run, err := c.Submit(within(t, 2*time.Minute), &errandv1.CreateRunRequest{
		IdempotencyKey: "k", Spec: &errandv1.RunSpec{Image: "busybox"}, Wait: durationpb.New(time.Hour),
	})
	if err != nil || client.Terminal(run.GetStatus()) {
		t.Errorf("%v, %v", run, err)
	}
}
