package conformance

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

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
	// The signal may come to a read, which it ends, or between two commands: it is over when
	// a line has been read after it.
	spec := s.sh(`again=0; trap 'again=1; stty size; echo interrupted' INT; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo terminal; read a; echo "got $a"; stty size
		while :; do if read a; then again=0; echo "more $a"; elif [ $again = 1 ]; then again=0; else exit 5; fi; done`)
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

// inputUnread: behind megabytes that the command does not read, signals and sizes reach it,
// from several writers and over a restart of the driver; then it reads all of it, in order.
func (s *suite) inputUnread() {
	for _, terminal := range []bool{false, true} {
		// As it is set, the terminal gives no byte a meaning.
		spec := s.sh(`n=0; trap 'n=$((n+1)); stty size; echo heard $n' USR1; [ -t 0 ] && stty raw -echo; echo ready
			while [ $n -lt 2 ]; do sleep 0.02; done; head -c 3000004 | sha256sum; exit 6`)
		spec.Spec.Stdin, spec.Spec.Terminal = !terminal, terminal
		s.start(spec)
		s.awaitLog(spec, "ready")
		long := append(bytes.Repeat([]byte("0123456789abcde\n"), 3_000_000/16), "last"...)
		given := s.giveUnread(spec.ID, long)
		s.hears(spec, 1)
		s.check("close", given.input.Close())
		n := <-given.written
		s.check("close", s.d.Close())
		s.d = s.h.Open(s.t)
		s.hears(spec, 2)
		again := s.input(spec.ID)
		_, err := again.Write(long[n:])
		s.check("write", err)
		exit := s.wait(spec.ID)
		for err == nil { // there is nobody to give it to
			_, err = again.Write(long)
		}
		s.check("close", again.Close())
		s.teardown(spec.ID)
		if out, _ := s.log(spec); exit.Code == nil || *exit.Code != 6 || !bytes.Contains(out, fmt.Appendf(nil, "%x", sha256.Sum256(long))) {
			s.t.Errorf("terminal %t: ended with %+v; stdout %q, and the input has sum %x", terminal, exit, out, sha256.Sum256(long))
		}
	}
}

// unread is what a command is given that does not read: how much comes through written
// when the input is closed.
type unread struct {
	input   sandbox.Input
	written chan int
}

// giveUnread returns when more is given than a pipe or terminal holds, and the rest waits.
func (s *suite) giveUnread(id string, long []byte) unread {
	const holds = 72 << 10
	u := unread{input: s.input(id), written: make(chan int, 1)}
	_, err := u.input.Write(long[:holds])
	s.check("write", err)
	go func() {
		n, _ := u.input.Write(long[holds:])
		u.written <- holds + n
	}()
	return u
}

// hears sends a size and a signal, as the one of a count.
func (s *suite) hears(spec sandbox.Spec, count int) {
	input := s.input(spec.ID)
	rows, columns := 40+count, 140+count
	s.check("resize", input.Resize(uint16(rows), uint16(columns))) //nolint:gosec // small
	s.check("signal", input.Signal(int(unix.SIGUSR1)))
	if spec.Spec.GetTerminal() {
		s.awaitLog(spec, fmt.Sprintf("%d %d", rows, columns))
	}
	s.awaitLog(spec, fmt.Sprintf("heard %d", count))
	s.check("close", input.Close())
}
