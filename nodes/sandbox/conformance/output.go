package conformance

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/errand-run/errand/nodes/logs"
	"github.com/errand-run/errand/nodes/sandbox"
)

// awaitLog waits until a sandbox has written a line.
func (s *suite) awaitLog(spec sandbox.Spec, line string) {
	s.t.Helper()
	r, err := logs.OpenReader(spec.LogPath, logs.Options{Follow: true})
	s.check("open log", err)
	defer func() { _ = r.Close() }() // it was only read
	var seen []byte
	ctx := s.context()
	for !bytes.Contains(seen, []byte(line)) {
		chunk, err := r.Next(ctx)
		if err != nil {
			s.t.Fatalf("wait for %q in the log: %v after %q", line, err, seen)
		}
		seen = append(seen, chunk.Data...)
	}
}

// output runs a command that succeeds and returns its log.
func (s *suite) output(spec sandbox.Spec) (stdout, stderr []byte) {
	s.t.Helper()
	s.start(spec)
	s.isExit(s.wait(spec.ID), 0, 0)
	s.teardown(spec.ID)
	return s.log(spec)
}

func (s *suite) environment() {
	spec := s.spec("sh", "-c", `pwd; printf "%s|" "$A" "$B" "$@"; echo; env | grep -c ^ERRAND_SUITE`, "name", "two words", "", "d\"'$\n")
	spec.Spec.WorkingDir = "/tmp"
	spec.Spec.Env = append(spec.Spec.Env, "A=value with = and \n break", "B=", "ERRAND_SUITE=1")
	out, _ := s.output(spec)
	want := "/tmp\nvalue with = and \n break||two words||d\"'$\n|\n1\n"
	if string(out) != want {
		s.t.Errorf("got %q, want %q", out, want)
	}
}

func (s *suite) logExact() {
	out, err := s.output(s.spec("sh", "-c", `echo one; echo two >&2; printf "\n\n"; printf "no line end" >&2; printf last`))
	if string(out) != "one\n\n\nlast" || string(err) != "two\nno line end" {
		s.t.Errorf("stdout %q, stderr %q", out, err)
	}
}

func (s *suite) logBinary() {
	// 1 MiB of every byte but the line end.
	out, errs := s.output(s.spec("sh", "-c", `head -c 1048576 /dev/urandom | tr "\n" x | tee /tmp/line | sha256sum >&2; cat /tmp/line; rm /tmp/line`))
	if len(out) != 1<<20 {
		s.t.Fatalf("%d bytes", len(out))
	}
	sum := sha256.Sum256(out)
	if want := hex.EncodeToString(sum[:]); !strings.HasPrefix(string(errs), want) {
		s.t.Errorf("the log's sum is %s, the command's %s", want, errs)
	}
}

func (s *suite) logLarge() {
	out, _ := s.output(s.spec("sh", "-c", `seq 1 300000`))
	lines := bytes.Split(out, []byte("\n"))
	if len(lines) != 300_001 {
		s.t.Fatalf("%d lines", len(lines)-1)
	}
	for i, line := range lines[:300_000] {
		if string(line) != fmt.Sprint(i+1) {
			s.t.Fatalf("line %d is %q", i+1, line)
		}
	}
}

func (s *suite) logShort() {
	out, _ := s.output(s.sh(`echo hello; echo world`, "log=hello", "log=world"))
	if string(out) != "hello\nworld\n" {
		s.t.Errorf("stdout %q", out)
	}
}
