package conformance

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/sandbox"
)

// output is written by several goroutines.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func (s *suite) execs() sandbox.Execs {
	s.t.Helper()
	inside, ok := s.d.(sandbox.Execs)
	if !ok {
		s.t.Fatal("the driver runs no command beside a sandbox's")
	}
	return inside
}

// exec runs a command in a sandbox and wants it to end like this.
func (s *suite) exec(id string, e sandbox.Exec, code int32, stdout string) {
	s.t.Helper()
	var out, err output
	e.Stdout, e.Stderr = &out, &err
	end, failure := s.execs().Exec(s.context(), id, e)
	if failure != nil || end.Code != code || out.String() != stdout {
		s.t.Fatalf("%q ended with %+v, %v; stdout %q, stderr %q; want code %d and %q", e.Command, end, failure, out.String(), err.String(), code, stdout)
	}
}

func shell(script string) []string { return []string{"sh", "-c", script} }

// execPlain: what a command beside gets and gives.
func (s *suite) execPlain() {
	spec := s.sleep()
	spec.Spec.Env = append(spec.Spec.Env, "OWN=of the run")
	spec.Spec.WorkingDir = "/tmp"
	s.start(spec)
	s.exec(spec.ID, sandbox.Exec{Command: shell(`echo "$OWN, $MORE, $(pwd)"; exit 7`), Env: []string{"MORE=a=b c"}}, 7, "of the run, a=b c, /tmp\n")
	s.exec(spec.ID, sandbox.Exec{Command: shell("cat; echo end"), Stdin: strings.NewReader("to the end\n")}, 0, "to the end\nend\n")
	s.exec(spec.ID, sandbox.Exec{Command: shell("cat; echo none")}, 0, "none\n")
	s.exec(spec.ID, sandbox.Exec{Command: shell("kill -KILL $$")}, 137, "")
	s.exec(spec.ID, sandbox.Exec{Command: []string{"/no/such/command"}}, 127, "")
	s.exec(spec.ID, sandbox.Exec{Command: []string{"/"}}, 126, "")
	s.exec(spec.ID, sandbox.Exec{Command: []string{"true"}, WorkingDir: "/no/such"}, 127, "")
	s.exec(spec.ID, sandbox.Exec{Command: shell("head -c 3000000 /dev/zero | tr '\\000' x")}, 0, strings.Repeat("x", 3_000_000))
	// The run itself is untouched by all that.
	if info := s.infos()[spec.ID]; info.State != sandbox.StateRunning {
		s.t.Errorf("the sandbox is in state %d", info.State)
	}
}

func (s *suite) execTerminal() {
	spec := s.sleep()
	s.start(spec)
	control := make(chan sandbox.ExecControl, 1)
	input, typed := io.Pipe()
	defer func() { _ = input.Close() }()
	var out output
	started := make(chan struct{})
	ended := make(chan sandbox.ExecEnd, 1)
	go func() {
		end, err := s.execs().Exec(s.context(), spec.ID, sandbox.Exec{
			Command:  shell(`stty size; trap 'stty size; exit 5' WINCH; echo ready; while :; do read x || exit 6; done`),
			Terminal: &sandbox.TerminalSize{Rows: 33, Columns: 111}, Stdin: input, Stdout: &out, Control: control,
			Started: func() { close(started) },
		})
		if err != nil {
			s.t.Errorf("exec: %v", err)
		}
		ended <- end
	}()
	<-started
	s.until("the terminal is ready", func() bool { return strings.Contains(out.String(), "ready") })
	control <- sandbox.ExecControl{Resize: &sandbox.TerminalSize{Rows: 44, Columns: 222}}
	go func() { _, _ = typed.Write([]byte("\n")) }() // a shell may look at traps between its reads only
	select {
	case end := <-ended:
		if text := out.String(); end.Code != 5 || !strings.Contains(text, "33 111") || !strings.Contains(text, "44 222") {
			s.t.Errorf("ended with %+v, wrote %q", end, text)
		}
	case <-time.After(deadline):
		s.t.Fatalf("the size never changed; wrote %q", out.String())
	}
}

// until waits for what nothing tells of.
func (s *suite) until(what string, done func() bool) {
	s.t.Helper()
	for limit := time.Now().Add(deadline); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			s.t.Fatalf("never: %s", what)
		}
	}
}

// execEnds: a command beside ends with its context, by its signals, and with its
// sandbox, of which nothing is left then.
func (s *suite) execEnds() {
	spec := s.sleep()
	s.start(spec)
	begin := func(ctx context.Context, control chan sandbox.ExecControl, script string) (ended chan sandbox.ExecEnd) {
		ended = make(chan sandbox.ExecEnd, 1)
		started := make(chan struct{})
		var out output
		go func() {
			end, _ := s.execs().Exec(ctx, spec.ID, sandbox.Exec{
				Command: shell(script), Stdout: &out, Stderr: &out, Control: control, Started: func() { close(started) },
			})
			ended <- end
		}()
		<-started
		s.until("the command writes", func() bool { return strings.Contains(out.String(), "begun") })
		return ended
	}
	ends := func(what string, ended chan sandbox.ExecEnd) (end sandbox.ExecEnd) {
		select {
		case end = <-ended:
		case <-time.After(deadline):
			s.t.Fatalf("it does not end %s", what)
		}
		return end
	}
	control := make(chan sandbox.ExecControl, 1)
	signaled := begin(s.context(), control, "trap 'exit 9' USR1; echo begun; while :; do sleep 0.05; done")
	control <- sandbox.ExecControl{Signal: 10}
	if end := ends("by its signal", signaled); end.Code != 9 {
		s.t.Errorf("after a signal it ended with %+v", end)
	}
	ctx, cancel := context.WithCancel(s.context())
	canceled := begin(ctx, nil, "trap '' TERM INT HUP; echo begun; while :; do sleep 0.05; done")
	cancel()
	ends("with its context", canceled)
	last := begin(s.context(), nil, "trap '' TERM INT HUP; echo begun; while :; do sleep 0.05; done")
	if _, err := s.d.Kill(s.context(), spec.ID); err != nil {
		s.t.Fatal(err)
	}
	ends("with its sandbox", last)
	if _, err := s.execs().Exec(s.context(), spec.ID, sandbox.Exec{Command: shell("true")}); records.ClassOf(err) != records.ClassConflict {
		s.t.Errorf("exec in a sandbox that has ended: %v", err)
	}
	if _, err := s.execs().Exec(s.context(), "eunknown", sandbox.Exec{Command: shell("true")}); records.ClassOf(err) != records.ClassNotFound {
		s.t.Errorf("exec in a sandbox that never was: %v", err)
	}
}

// execAfterRestart: a driver lets into what another one has started.
func (s *suite) execAfterRestart() {
	spec := s.sleep()
	spec.Spec.Env = append(spec.Spec.Env, "OWN=of the run")
	s.start(spec)
	s.check("close", s.d.Close())
	s.d = s.h.Open(s.t)
	s.exec(spec.ID, sandbox.Exec{Command: shell(`echo "$OWN"`)}, 0, "of the run\n")
}

// root: files that the command writes are seen below the root.
func (s *suite) root() {
	mark := filepath.Join("/tmp", "conformance-root-"+filepath.Base(s.h.LogRoot))
	spec := s.sh("echo inside > " + mark + "; sleep 3600")
	s.start(spec)
	roots, ok := s.d.(sandbox.Roots)
	if !ok {
		s.t.Fatal("the driver shows no files of its sandboxes")
	}
	s.exec(spec.ID, sandbox.Exec{Command: shell("until [ -s " + mark + " ]; do sleep 0.02; done")}, 0, "")
	root, err := roots.RootOf(s.context(), spec.ID)
	s.check("root", err)
	if text, err := os.ReadFile(filepath.Join(root, mark)); err != nil || string(text) != "inside\n" {
		s.t.Errorf("below %s: %q, %v", root, text, err)
	}
	s.exec(spec.ID, sandbox.Exec{Command: []string{"rm", mark}}, 0, "")
	if _, err := s.d.Kill(s.context(), spec.ID); err != nil {
		s.t.Fatal(err)
	}
	s.wait(spec.ID)
	if _, err := roots.RootOf(s.context(), spec.ID); records.ClassOf(err) != records.ClassConflict {
		s.t.Errorf("the root of a sandbox that has ended: %v", err)
	}
}
