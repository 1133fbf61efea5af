package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/errand-run/errand/api/client"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// ends watches all runs of a node and counts how often each one comes to an end: how
// often it is told as terminal that was not told so before, or otherwise.
type ends struct {
	mu    sync.Mutex
	last  map[string]*errandv1.Run
	count map[string]int
	// after is what was told of runs that had ended, and should not have been.
	after []string
}

// watchEnds goes on until its context ends.
func (n *node) watchEnds(ctx context.Context, t *testing.T) (e *ends, stopped <-chan error) {
	t.Helper()
	c, err := client.New(client.Config{Address: n.Address})
	if err != nil {
		t.Fatal(err)
	}
	e = &ends{last: map[string]*errandv1.Run{}, count: map[string]int{}}
	done, begun := make(chan error, 1), make(chan struct{})
	go func() {
		defer c.Close()
		var once sync.Once
		for told, err := range c.Changes(ctx, &errandv1.RunChangesRequest{}) {
			if ctx.Err() != nil {
				break
			}
			if err != nil {
				done <- err
				return
			}
			once.Do(func() { close(begun) })
			for _, change := range told.GetChanges() {
				e.take(change.GetRun())
			}
		}
		done <- nil
	}()
	select {
	case <-begun:
	case err := <-done:
		t.Fatalf("watch all runs: %v", err)
	}
	return e, done
}

func (e *ends) take(run *errandv1.Run) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before, id := e.last[run.GetId()], run.GetId()
	e.last[id] = run
	ended := client.Terminal(run.GetStatus())
	switch {
	case !client.Terminal(before.GetStatus()):
		if ended {
			e.count[id]++
		}
	case run.GetStatus() != before.GetStatus() || run.GetExitCode() != before.GetExitCode() || !run.GetEndedAt().AsTime().Equal(before.GetEndedAt().AsTime()):
		e.after = append(e.after, fmt.Sprintf("%s: %s, %d, then %s, %d", id, before.GetStatus(), before.GetExitCode(), run.GetStatus(), run.GetExitCode()))
	}
}

// ended returns how many runs have.
func (e *ends) ended() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.count)
}

// freeze stops the daemon for so long, as a machine that stalls does.
func (n *node) freeze(t *testing.T, d time.Duration) {
	t.Helper()
	sendSignal(t, n.PID(), syscall.SIGSTOP)
	<-time.After(d)
	sendSignal(t, n.PID(), syscall.SIGCONT)
}

// logOf returns the lines of an attempt's stdout.
func (n *node) logOf(ctx context.Context, t *testing.T, id string, attempt int32) []string {
	t.Helper()
	stream, err := n.Runs.Logs(ctx, &errandv1.LogsRequest{Id: id, Attempt: attempt})
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for stream.Receive() {
		for _, chunk := range stream.Msg().GetChunks() {
			text.Write(chunk.GetData())
		}
	}
	if err := errors.Join(stream.Err(), stream.Close()); err != nil {
		t.Fatalf("log of attempt %d of %s: %v", attempt, id, err)
	}
	return strings.Fields(text.String())
}

// LIF-03: a daemon that stood still believes nothing that it knew before. Each run ends
// once, with its command's code; an attempt that the fence may have ended is tried again,
// if it may be, and stays on record.
func TestRunsEndOnceAndWellHoweverOftenTheDaemonIsFrozen(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			if k.name == "containerd" {
				needContainerd(t)
			}
			g := startGuardedNode(t, k.flags...)
			if k.name == "containerd" {
				g.importBusybox(t)
			}
			g.endsOnceAndWell(t, k)
		})
	}
}

func (g *guardedNode) endsOnceAndWell(t *testing.T, k kind) {
	t.Helper()
	const (
		parallel = 20
		freezes  = 3
		// frozen is one and a half times as long as a session lasts that is not renewed.
		frozen = 18 * time.Second
		every  = 20 * time.Second
	)
	runs := 500
	if k.name == "containerd" && os.Getenv(tortureEnv) == "" {
		runs = 200 // all of them are in make torture
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	told, stopped := g.watchEnds(watching, t)
	path, lines := ledger(t)
	spec := &errandv1.RunSpec{Driver: k.name, Retry: &errandv1.Retry{Retries: 1}}
	if k.name == "containerd" {
		// A container shares no file with the others; a second start would be in its log.
		path, spec.Image = outputLedger, "busybox"
	}
	spec.Command = []string{"/bin/sh", "-c", `echo "$ERRAND_RUN_ID/$ERRAND_ATTEMPT" >> ` + path + "; exit 0"}
	c, err := client.New(client.Config{Address: g.Address})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	// They are spread over all of the freezes.
	pace := time.NewTicker(freezes * every / time.Duration(runs))
	defer pace.Stop()
	ended := make([]*errandv1.Run, runs)
	var group sync.WaitGroup
	for worker := range parallel {
		group.Go(func() {
			for i := worker; i < runs; i += parallel {
				<-pace.C
				created, err := c.Submit(ctx, &errandv1.CreateRunRequest{IdempotencyKey: fmt.Sprint("truth-", i), Spec: spec})
				if err == nil {
					ended[i], err = c.Wait(ctx, created.GetId())
				}
				if err != nil {
					t.Errorf("run %d: %v", i, err)
					return
				}
			}
		})
	}
	for range freezes {
		<-time.After(every - frozen)
		g.freeze(t, frozen)
	}
	group.Wait()
	if t.Failed() {
		t.Fatalf("node: %s", g.log)
	}
	// What is told of a run that has ended comes before what is told of one that ends now.
	last := k.detach(t, g.node, nil, "true")
	g.errand(t, "wait", last)
	for told.ended() <= runs {
		if ctx.Err() != nil {
			t.Fatalf("%d runs were told to have ended", told.ended())
		}
		<-time.After(10 * time.Millisecond)
	}
	stopWatching()
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}

	started := map[string]int{}
	for _, line := range lines() {
		started[line]++
	}
	if k.name == "containerd" {
		for _, run := range ended {
			for _, attempt := range run.GetAttempts() {
				for _, line := range g.logOf(ctx, t, run.GetId(), attempt.GetNumber()) {
					started[line]++
				}
			}
		}
	}
	again := 0
	for _, run := range ended {
		id, attempts := run.GetId(), run.GetAttempts()
		if run.GetStatus() != errandv1.Status_STATUS_SUCCEEDED || run.ExitCode == nil || run.GetExitCode() != 0 {
			t.Errorf("a run ended as %v", run)
		}
		if told.count[id] != 1 {
			t.Errorf("run %s was told to have ended %d times", id, told.count[id])
		}
		for i, attempt := range attempts {
			lost := attempt.GetReason() == errandv1.Reason_REASON_NODE_FENCED || attempt.GetReason() == errandv1.Reason_REASON_START_UNKNOWN
			if last := i == len(attempts)-1; lost == last || lost && attempt.ExitCode != nil {
				t.Errorf("attempt %d of %d of %s ended as %v", i+1, len(attempts), id, attempt)
			}
			if times := started[fmt.Sprintf("%s/%d", id, attempt.GetNumber())]; times > 1 || times == 0 && !lost {
				t.Errorf("attempt %d of %s was started %d times", attempt.GetNumber(), id, times)
			}
		}
		if len(attempts) > 1 {
			again++
		}
	}
	if len(told.after) > 0 {
		t.Errorf("told of runs that had ended: %s", strings.Join(told.after, "; "))
	}
	t.Logf("%d runs, %d freezes; %d runs have more than one attempt", runs, freezes, again)
}
