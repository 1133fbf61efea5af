package conformance

import (
	"bytes"
	"time"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/sandbox"
)

// infos returns what List has, by id.
func (s *suite) infos() map[string]sandbox.Info {
	s.t.Helper()
	list, err := s.d.List(s.context())
	s.check("list", err)
	infos := map[string]sandbox.Info{}
	for _, info := range list {
		if _, twice := infos[info.ID]; twice {
			s.t.Errorf("List has %s twice", info.ID)
		}
		infos[info.ID] = info
	}
	return infos
}

func (s *suite) isListed(infos map[string]sandbox.Info, spec sandbox.Spec, state sandbox.State) {
	s.t.Helper()
	info, ok := infos[spec.ID]
	if !ok {
		s.t.Fatalf("List lacks %s: %+v", spec.ID, infos)
	}
	if info.State != state || info.Run != spec.Run || info.Attempt != spec.Attempt || info.Placement != spec.Placement ||
		!bytes.Equal(info.StartToken, spec.StartToken) || !bytes.Equal(info.SpecHash, spec.SpecHash) {
		s.t.Errorf("List has %+v, want state %d of %+v", info, state, spec)
	}
}

func (s *suite) list() {
	created, running, exited := s.sleep(), s.sleep(), s.sh("exit 4", "exit=4")
	s.create(created)
	s.start(running)
	s.start(exited)
	s.isExit(s.wait(exited.ID), 4, 0)
	infos := s.infos()
	if len(infos) != 3 {
		s.t.Errorf("List has %d sandboxes, want 3", len(infos))
	}
	s.isListed(infos, created, sandbox.StateCreated)
	s.isListed(infos, running, sandbox.StateRunning)
	s.isListed(infos, exited, sandbox.StateExited)
}

// survive closes the driver and opens it again, as a restart of the daemon does.
func (s *suite) survive() {
	exited, between, running, created := s.sh("exit 11", "exit=11"), s.sh("sleep 0.4; echo late; exit 12", "after=400ms", "exit=12"), s.sleep(), s.sleep()
	for _, spec := range []sandbox.Spec{exited, between, running} {
		s.start(spec)
	}
	s.create(created)
	s.isExit(s.wait(exited.ID), 11, 0)

	waiting := make(chan error, 1)
	go func() {
		_, err := s.d.Wait(s.context(), running.ID)
		waiting <- err
	}()
	s.check("close", s.d.Close())
	select {
	case err := <-waiting:
		if err == nil {
			s.t.Error("Wait gave an exit when the driver closed")
		}
	case <-time.After(deadline):
		s.t.Fatal("Wait outlives the driver")
	}
	time.Sleep(600 * time.Millisecond) // The gap in which one of them ends.
	s.d = s.h.Open(s.t)

	infos := s.infos()
	s.isListed(infos, exited, sandbox.StateExited)
	s.isListed(infos, running, sandbox.StateRunning)
	s.isListed(infos, created, sandbox.StateCreated)
	s.isExit(s.wait(exited.ID), 11, 0)
	s.isExit(s.wait(between.ID), 12, 0)
	s.teardown(between.ID)
	if out, _ := s.log(between); !s.h.Programmed && string(out) != "late\n" {
		s.t.Errorf("the log of the gap has %q", out)
	}
	if _, err := s.d.Start(s.context(), running.ID); err == nil {
		s.t.Error("a survivor was started again")
	}
	delivered, err := s.d.Signal(s.context(), running.ID, sigterm)
	if err != nil || !delivered {
		s.t.Fatalf("signal to a survivor: %v, %v", delivered, err)
	}
	s.isExit(s.wait(running.ID), 128+sigterm, sigterm)
	s.teardown(running.ID)
	for _, spec := range []sandbox.Spec{exited, between, running, created} {
		_, err := s.d.Kill(s.context(), spec.ID)
		s.check("kill", err)
		s.check("remove", s.d.Remove(s.context(), spec.ID))
		if _, err := s.d.Wait(s.context(), spec.ID); records.ClassOf(err) != records.ClassNotFound {
			s.t.Errorf("wait after remove: %v", err)
		}
	}
}
