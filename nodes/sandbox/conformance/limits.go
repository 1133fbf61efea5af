package conformance

import (
	"bytes"
	"context"
	"time"
)

func (s *suite) leftover() {
	// A daemon as daemons do it: fork twice, in a session of its own, with no stream of
	// the command's.
	spec := s.spec("sh", "-c", `(setsid sh -c "trap '' TERM HUP; while :; do sleep 1; done" </dev/null >/dev/null 2>&1 &) ; exit 6`)
	s.start(spec)
	s.isExit(s.wait(spec.ID), 6, 0)
	if !s.teardown(spec.ID) {
		s.t.Error("nothing was left over")
	}

	// One that holds the command's streams must not hold up the end of the log.
	spec = s.spec("sh", "-c", `(setsid sleep 3600 &) ; echo out; exit 0`)
	s.start(spec)
	s.isExit(s.wait(spec.ID), 0, 0)
	if !s.teardown(spec.ID) {
		s.t.Error("nothing was left over")
	}
	if out, _ := s.log(spec); string(out) != "out\n" {
		s.t.Errorf("the log has %q", out)
	}
}

func (s *suite) stopped() {
	spec := s.spec("sh", "-c", `echo ready; kill -STOP $$; echo never`)
	s.start(spec)
	s.awaitLog(spec, "ready\n")
	leftover, err := s.d.Kill(s.context(), spec.ID)
	if err != nil || !leftover {
		s.t.Fatalf("kill: %v, %v", leftover, err)
	}
	s.isExit(s.wait(spec.ID), 128+sigkill, sigkill)
}

func (s *suite) forkBomb() {
	spec := s.spec("sh", "-c", `echo ready; f() { f | f & sleep 1; }; while :; do f; done 2>/dev/null`)
	spec.Spec.PidsLimit = 40
	s.start(spec)
	s.awaitLog(spec, "ready\n")
	ctx, cancel := context.WithTimeout(s.context(), 10*time.Second)
	defer cancel()
	if _, err := s.d.Kill(ctx, spec.ID); err != nil {
		s.t.Fatalf("kill: %v", err)
	}
	exit, err := s.d.Wait(ctx, spec.ID)
	s.check("wait", err)
	// The shell itself may have given up before.
	if exit.Code == nil {
		s.t.Fatalf("exit %s", show(exit))
	}
}

func (s *suite) oom() {
	spec := s.spec("sh", "-c", `x=0123456789abcdef; while :; do x=$x$x; done`)
	spec.Spec.MemoryBytes = 32 << 20
	s.start(spec)
	exit := s.wait(spec.ID)
	s.isExit(exit, 128+sigkill, sigkill)
	if !exit.OOMKilled {
		s.t.Errorf("the kernel's kill is not told: %s", show(exit))
	}
	if peak := exit.MemoryPeakBytes; peak <= spec.Spec.GetMemoryBytes()/2 || peak > spec.Spec.GetMemoryBytes() {
		s.t.Errorf("the peak is told as %d bytes of %d", peak, spec.Spec.GetMemoryBytes())
	}
	s.teardown(spec.ID)

	// A kill by hand is not one by the kernel.
	spec = s.spec("sh", "-c", `kill -9 $$`)
	spec.Spec.MemoryBytes = 32 << 20
	s.start(spec)
	if exit = s.wait(spec.ID); exit.OOMKilled || exit.MemoryPeakBytes != 0 {
		s.t.Errorf("told as a kill for want of memory: %s", show(exit))
	}

	// A child's is not the cause of the command's end.
	spec = s.spec("sh", "-c", `sh -c 'x=0123456789abcdef; while :; do x=$x$x; done' 2>/dev/null; echo "child $?"; exit 9`)
	spec.Spec.MemoryBytes = 32 << 20
	s.start(spec)
	exit = s.wait(spec.ID)
	s.isExit(exit, 9, 0)
	s.teardown(spec.ID)
	if out, _ := s.log(spec); !bytes.HasPrefix(out, []byte("child 137")) {
		s.t.Errorf("the log has %q", out)
	}
}
