package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

const (
	sigkill = 9
	sigterm = 15
)

func (s *suite) exitCodes() {
	for _, code := range []int32{0, 1, 7, 126, 127, 137, 143, 255} {
		spec := s.sh(fmt.Sprintf("exit %d", code), fmt.Sprintf("exit=%d", code))
		s.start(spec)
		s.isExit(s.wait(spec.ID), code, 0)
		if s.teardown(spec.ID) {
			s.t.Errorf("exit %d: something was left over", code)
		}
	}
}

func (s *suite) signals() {
	for _, signal := range []int32{1, 6, 9, 15} {
		spec := s.sh(fmt.Sprintf("kill -%d $$", signal), fmt.Sprintf("signal=%d", signal))
		s.start(spec)
		s.isExit(s.wait(spec.ID), 128+signal, signal)
		s.teardown(spec.ID)
	}
}

func (s *suite) startErrors() {
	missing, denied := recordv1.Reason_REASON_NOT_FOUND, recordv1.Reason_REASON_NOT_EXECUTABLE
	cases := []struct {
		name    string
		command string
		dir     string
		reason  recordv1.Reason
	}{
		{"missing command", "no-such-command", "", missing},
		{"missing path", "/no/such/command", "", missing},
		{"missing relative path", "./no-such-command", "", missing},
		{"not executable", s.h.NotExecutable, "", denied},
		{"a directory", "/", "", denied},
		{"missing interpreter", s.h.NoInterpreter, "", missing},
		{"no known format", s.h.NoFormat, "", denied},
		{"missing working directory", "true", "/no/such/directory", recordv1.Reason_REASON_START_ERROR},
	}
	for _, c := range cases {
		spec := s.spec(c.command)
		spec.Spec.WorkingDir = c.dir
		err := s.createAndStart(spec)
		var start *sandbox.StartError
		if !errors.As(err, &start) || start.Reason != c.reason || !start.Permanent || start.Message == "" {
			s.t.Errorf("%s: error is %v (%+v), want %v for good", c.name, err, start, c.reason)
		}
	}
}

// createAndStart is for commands that either may refuse.
func (s *suite) createAndStart(spec sandbox.Spec) error {
	s.ids = append(s.ids, spec.ID)
	if err := s.d.Create(s.context(), spec); err != nil {
		return err
	}
	_, err := s.d.Start(s.context(), spec.ID)
	return err
}

func (s *suite) failedStart() {
	spec := s.spec("no-such-command")
	if s.h.Programmed {
		spec = s.spec("start-error=NOT_FOUND")
	}
	err := s.createAndStart(spec)
	s.isStartError(err, recordv1.Reason_REASON_NOT_FOUND)
	if leftover := s.teardown(spec.ID); leftover {
		s.t.Error("a command that never ran left something over")
	}
}

func (s *suite) startsOnce() {
	spec := s.sleep()
	s.start(spec)
	if _, err := s.d.Start(s.context(), spec.ID); err == nil {
		s.t.Fatal("a second Start succeeded")
	}
	if err := s.d.Create(s.context(), spec); err == nil {
		s.t.Fatal("a second Create succeeded")
	}
	_, err := s.d.Kill(s.context(), spec.ID)
	s.check("kill", err)
	s.isExit(s.wait(spec.ID), 128+sigkill, sigkill)
	if _, err := s.d.Start(s.context(), spec.ID); err == nil {
		s.t.Fatal("Start after the end succeeded")
	}
}

func (s *suite) unknown() {
	id, ctx := s.spec("true").ID, s.context()
	if _, err := s.d.Start(ctx, id); records.ClassOf(err) != records.ClassNotFound {
		s.t.Errorf("Start: %v", err)
	}
	if _, err := s.d.Wait(ctx, id); records.ClassOf(err) != records.ClassNotFound {
		s.t.Errorf("Wait: %v", err)
	}
	if _, err := s.d.Signal(ctx, id, sigterm); records.ClassOf(err) != records.ClassNotFound {
		s.t.Errorf("Signal: %v", err)
	}
	if leftover, err := s.d.Kill(ctx, id); err != nil || leftover {
		s.t.Errorf("Kill: %v, %v", leftover, err)
	}
	if _, err := s.d.Flush(ctx, id); err != nil {
		s.t.Errorf("Flush: %v", err)
	}
	if err := s.d.Remove(ctx, id); err != nil {
		s.t.Errorf("Remove: %v", err)
	}
}

func (s *suite) term() {
	spec := s.sleep()
	s.start(spec)
	delivered, err := s.d.Signal(s.context(), spec.ID, sigterm)
	if err != nil || !delivered {
		s.t.Fatalf("signal: %v, %v", delivered, err)
	}
	s.isExit(s.wait(spec.ID), 128+sigterm, sigterm)
	s.teardown(spec.ID)
	delivered, err = s.d.Signal(s.context(), spec.ID, sigterm)
	if err != nil || delivered {
		s.t.Fatalf("signal after the end: %v, %v", delivered, err)
	}
}

func (s *suite) kill() {
	spec := s.sh(`trap "" TERM; echo ready; while :; do sleep 1; done`, "after=1h", "ignore-term", "log=ready")
	s.start(spec)
	s.awaitLog(spec, "ready\n")
	delivered, err := s.d.Signal(s.context(), spec.ID, sigterm)
	if err != nil || !delivered {
		s.t.Fatalf("signal: %v, %v", delivered, err)
	}
	short, cancel := context.WithTimeout(s.context(), 200*time.Millisecond)
	defer cancel()
	if exit, err := s.d.Wait(short, spec.ID); err == nil {
		s.t.Fatalf("TERM ended it: %s", show(exit))
	}
	leftover, err := s.d.Kill(s.context(), spec.ID)
	if err != nil || !leftover {
		s.t.Fatalf("kill: %v, %v", leftover, err)
	}
	s.isExit(s.wait(spec.ID), 128+sigkill, sigkill)
	complete, err := s.d.Flush(s.context(), spec.ID)
	if err != nil || !complete {
		s.t.Fatalf("flush: %v, %v", complete, err)
	}
	if out, _ := s.log(spec); string(out) != "ready\n" {
		s.t.Errorf("the log has %q", out)
	}
}

func (s *suite) killCreated() {
	spec := s.sleep()
	s.create(spec)
	if leftover, err := s.d.Kill(s.context(), spec.ID); err != nil || leftover {
		s.t.Fatalf("kill: %v, %v", leftover, err)
	}
	s.check("remove", s.d.Remove(s.context(), spec.ID))
	if _, err := s.d.Start(s.context(), spec.ID); records.ClassOf(err) != records.ClassNotFound {
		s.t.Fatalf("start after remove: %v", err)
	}
}

func (s *suite) waitContext() {
	spec := s.sleep()
	s.start(spec)
	short, cancel := context.WithTimeout(s.context(), 20*time.Millisecond)
	defer cancel()
	if exit, err := s.d.Wait(short, spec.ID); err == nil {
		s.t.Fatalf("exit of a command that runs: %s", show(exit))
	}
	delivered, err := s.d.Signal(s.context(), spec.ID, sigkill)
	if err != nil || !delivered {
		s.t.Fatalf("signal: %v, %v", delivered, err)
	}
	s.isExit(s.wait(spec.ID), 128+sigkill, sigkill)
}

func (s *suite) waitMany() {
	spec := s.sh("sleep 0.2; exit 5", "after=200ms", "exit=5")
	s.start(spec)
	exits, errs := make([]sandbox.Exit, 8), make([]error, 8)
	var all sync.WaitGroup
	for i := range exits {
		all.Go(func() { exits[i], errs[i] = s.d.Wait(s.context(), spec.ID) })
	}
	all.Wait()
	again := s.wait(spec.ID)
	for i := range exits {
		s.check("wait", errs[i])
		s.isExit(exits[i], 5, 0)
		if !exits[i].At.Equal(again.At) || !exits[i].StartedAt.Equal(again.StartedAt) {
			s.t.Errorf("times differ: %+v, %+v", exits[i], again)
		}
	}
	s.teardown(spec.ID)
	s.isExit(s.wait(spec.ID), 5, 0)
}

func (s *suite) removeAgain() {
	spec := s.sh("exit 3", "exit=3")
	s.start(spec)
	s.isExit(s.wait(spec.ID), 3, 0)
	s.teardown(spec.ID)
	for range 3 {
		s.check("remove", s.d.Remove(s.context(), spec.ID))
	}
	if _, err := s.d.Wait(s.context(), spec.ID); records.ClassOf(err) != records.ClassNotFound {
		s.t.Errorf("wait after remove: %v", err)
	}
	s.log(spec)
}
