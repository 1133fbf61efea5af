package conformance

import (
	"strings"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/sandbox"
)

func (s *suite) input(id string) sandbox.Input {
	s.t.Helper()
	inputs, ok := s.d.(sandbox.Inputs)
	if !ok {
		s.t.Fatal("the driver gives commands no input")
	}
	opened, err := inputs.OpenInput(s.context(), id)
	s.check("open input", err)
	return opened
}

// inputPlain: input arrives in order from several writers, over a restart of the driver,
// and has its end when it is told.
func (s *suite) inputPlain() {
	spec := s.sh("cat; echo end")
	spec.Spec.Stdin = true
	s.start(spec)
	first, second := s.input(spec.ID), s.input(spec.ID)
	long := strings.Repeat("0123456789abcde\n", 20_000)
	_, err := first.Write([]byte(long))
	s.check("write", err)
	s.check("close", first.Close())
	_, err = second.Write([]byte("second\n"))
	s.check("write", err)
	s.check("close", second.Close())
	s.check("close", s.d.Close())
	s.d = s.h.Open(s.t)
	third := s.input(spec.ID)
	_, err = third.Write([]byte("third\n"))
	s.check("write", err)
	s.check("end", third.End())
	s.check("close", third.Close())
	s.isExit(s.wait(spec.ID), 0, 0)
	s.teardown(spec.ID)
	if out, _ := s.log(spec); string(out) != long+"second\nthird\nend\n" {
		s.t.Errorf("stdout has %d bytes and ends with %q", len(out), out[max(0, len(out)-40):])
	}
	if _, err := s.d.(sandbox.Inputs).OpenInput(s.context(), spec.ID); err == nil {
		s.t.Error("the input of a command that has ended is open")
	}
	none := s.sleep()
	s.start(none)
	if _, err := s.d.(sandbox.Inputs).OpenInput(s.context(), none.ID); records.ClassOf(err) != records.ClassInvalid {
		s.t.Errorf("the input of a command without: %v", err)
	}
}

// inputTerminal: a terminal is one, has a size, and its keys are signals. The command goes
// on after an interrupt, which ends what it reads, and ends at a Ctrl-D only: what is typed
// to one that has ended goes nowhere.
func (s *suite) inputTerminal() {
	spec := s.sh(`trap 'stty size; echo interrupted; again=1' INT; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo terminal; read a; echo "got $a"; stty size
		again=1; while [ $again = 1 ]; do again=0; while read a; do echo "more $a"; done; done; exit 5`)
	spec.Spec.Terminal = true
	s.start(spec)
	typed := s.input(spec.ID)
	s.check("resize", typed.Resize(33, 111))
	_, err := typed.Write([]byte("line\n"))
	s.check("write", err)
	s.awaitLog(spec, "33 111")
	s.check("resize", typed.Resize(44, 222))
	_, err = typed.Write([]byte{3})
	s.check("write", err)
	s.awaitLog(spec, "interrupted")
	_, err = typed.Write([]byte("line\n"))
	s.check("write", err)
	s.awaitLog(spec, "more line")
	_, err = typed.Write([]byte{4})
	s.check("write", err)
	exit := s.wait(spec.ID)
	s.check("close", typed.Close())
	s.teardown(spec.ID)
	out, stderr := s.log(spec)
	stdout := string(out)
	if exit.Code == nil || *exit.Code != 5 || len(stderr) > 0 || !strings.Contains(stdout, "terminal\r\n") || !strings.Contains(stdout, "got line") || !strings.Contains(stdout, "44 222") {
		s.t.Errorf("ended with %+v; stdout %q, stderr %q", exit, stdout, stderr)
	}
}
