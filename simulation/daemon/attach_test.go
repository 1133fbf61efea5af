package daemon_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

// screen is errand at a terminal.
type screen struct {
	t       *testing.T
	master  *os.File
	shown   lines
	command *exec.Cmd
	ended   chan struct{}
	read    sync.WaitGroup
}

// terminal starts errand at a terminal of 30 rows and 100 columns.
func (n *node) terminal(t *testing.T, args ...string) *screen {
	t.Helper()
	s := &screen{t: t, command: exec.Command(filepath.Join(binaries, "errand"), args...), ended: make(chan struct{})}
	s.command.Env = append(os.Environ(), "ERRAND_ADDRESS="+n.Address)
	var err error
	if s.master, err = pty.StartWithSize(s.command, &pty.Winsize{Rows: 30, Cols: 100}); err != nil {
		t.Fatal(err)
	}
	s.read.Go(func() { _, _ = io.Copy(&s.shown, s.master) })
	go func() {
		defer close(s.ended)
		_ = s.command.Wait()
	}()
	t.Cleanup(func() {
		_ = s.command.Process.Kill()
		<-s.ended
		_ = s.master.Close()
		s.read.Wait()
	})
	return s
}

func (s *screen) typeKeys(keys string) {
	s.t.Helper()
	if _, err := s.master.WriteString(keys); err != nil {
		s.t.Fatalf("type %q: %v; shown %q", keys, err, s.shown.text())
	}
}

func (s *screen) await(text string) {
	s.t.Helper()
	s.shown.await(s.t, text)
}

// insist types until a text is shown: a shell that is interrupted drops what it was
// typed meanwhile.
func (s *screen) insist(keys, text string) {
	s.t.Helper()
	for limit := time.Now().Add(2 * time.Minute); !strings.Contains(s.shown.text(), text); {
		if time.Now().After(limit) {
			s.t.Fatalf("never %q; got %q", text, s.shown.text())
		}
		s.typeKeys(keys)
		for soon := time.Now().Add(time.Second); time.Now().Before(soon) && !strings.Contains(s.shown.text(), text); {
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// run is the id of the run whose shell is typed to.
func (s *screen) run() string {
	s.t.Helper()
	s.typeKeys("echo id=$ERRAND_RUN_ID.\n")
	id := regexp.MustCompile(`id=([kr]\.[a-z0-9.-]+)\.\r`)
	for limit := time.Now().Add(2 * time.Minute); time.Now().Before(limit); time.Sleep(5 * time.Millisecond) {
		if found := id.FindStringSubmatch(s.shown.text()); found != nil {
			return found[1]
		}
	}
	s.t.Fatalf("the shell does not answer; shown %q", s.shown.text())
	return ""
}

// end waits for errand to end.
func (s *screen) end(code int) {
	s.t.Helper()
	select {
	case <-s.ended:
	case <-time.After(2 * time.Minute):
		s.t.Fatalf("errand does not end; shown %q", s.shown.text())
	}
	if got := s.command.ProcessState.ExitCode(); got != code {
		s.t.Errorf("errand ended with %d, want %d; shown %q", got, code, s.shown.text())
	}
}

// awaitStatus waits for a run's status.
func (n *node) awaitStatus(t *testing.T, id, status string, within time.Duration) shown {
	t.Helper()
	for limit := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
		s := n.show(t, id)
		if s.Status == status {
			return s
		}
		if time.Now().After(limit) {
			t.Fatalf("run %s is %s and not %s after %s: %s\n%s", id, s.Status, status, within, s.Message, n.log)
		}
	}
}

// consoleSession is what a person does at a console: keys are signals, the size is the
// terminal's, and the code is the command's.
func consoleSession(t *testing.T, n *node, args ...string) {
	t.Helper()
	s := n.terminal(t, append([]string{"console"}, args...)...)
	id := s.run()
	s.typeKeys("[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo is a termi''nal; stty size\n")
	s.await("is a terminal")
	s.await("30 100")
	if err := pty.Setsize(s.master, &pty.Winsize{Rows: 40, Cols: 120}); err != nil {
		t.Fatal(err)
	}
	s.typeKeys("until [ \"$(stty size)\" = '40 120' ]; do sleep 0.05; done; echo re''sized\n")
	s.await("resized")
	s.typeKeys("echo ru''nning; sleep 600; echo never\n")
	s.await("running")
	s.insist("\x03", "^C")
	s.insist("echo code $?.\n", "code 130.")
	s.typeKeys("exit 7\n")
	s.end(7)
	if got := n.show(t, id); got.Status != "FAILED" || got.ExitCode == nil || *got.ExitCode != 7 || got.Attempt != 1 {
		t.Errorf("the run is %+v", got)
	}
	if r := n.errand(t, "show", id, "-o", "json"); !strings.Contains(r.stdout, `"CONSOLE"`) {
		t.Errorf("the run's trigger is not CONSOLE: %s", r.stdout)
	}
}

func TestConsoleOfAProcess(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	consoleSession(t, n, "--driver", "process", "--", "sh")
	// Without a terminal it reads what comes.
	command := exec.Command(filepath.Join(binaries, "errand"), "console", "--driver", "process", "--", "sh")
	command.Env = append(os.Environ(), "ERRAND_ADDRESS="+n.Address)
	command.Stdin = strings.NewReader("echo plain; [ -t 0 ] || exit 5\n")
	output, _ := command.CombinedOutput()
	if code := command.ProcessState.ExitCode(); code != 5 || string(output) != "plain\n" {
		t.Errorf("code %d, output %q", code, output)
	}
	if r := n.errand(t, "run", "-t", "--driver", "process", "--", "sh"); r.code != 2 || !strings.Contains(r.stderr, "-t wants a terminal") {
		t.Errorf("run -t without a terminal: code %d, stderr %q", r.code, r.stderr)
	}
}

func TestConsoleOfAContainer(t *testing.T) {
	t.Parallel()
	n := startContainerNode(t)
	consoleSession(t, n, "busybox", "--", "sh")
	s := n.terminal(t, "console", "busybox")
	s.run()
	n.restart(t)
	s.await("attached again")
	s.insist("echo af''ter\n", "after")
	s.typeKeys("exit 3\n")
	s.end(3)
	s = n.terminal(t, "console", "busybox", "--", "/no/such")
	s.await("NOT_FOUND")
	s.end(127)
}

// TestDetachedRunIsAttachedToAgain: it goes on meanwhile, and shows what it wrote.
func TestDetachedRunIsAttachedToAgain(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	s := n.terminal(t, "run", "-it", "--driver", "process", "--", "sh")
	id := s.run()
	s.typeKeys("kept=trea''sure; echo be''fore\n")
	s.await("before")
	s.typeKeys("\x10\x11")
	s.await("detached from run " + id)
	s.end(0)
	if got := n.show(t, id); got.Status != "RUNNING" {
		t.Fatalf("after the detach it is %s: %s", got.Status, got.Message)
	}
	s = n.terminal(t, "attach", "--detach-keys", "ctrl-a,d", id)
	s.await("before")
	s.typeKeys("echo $kept\n")
	s.await("treasure")
	// The keys that detach elsewhere are the command's, and so is all before those that do.
	s.typeKeys("\x10\x11\nlast=wo''rd\n\x01d")
	s.await("detached from run " + id)
	s.end(0)
	s = n.terminal(t, "attach", "--tail", "1", id)
	s.typeKeys("echo $last; exit 3\n")
	s.await("word")
	s.end(3)
	if strings.Contains(s.shown.text(), "before") {
		t.Errorf("more than the last line is shown: %q", s.shown.text())
	}
	if r := n.errand(t, "attach", id); r.code != 125 || !strings.Contains(r.stderr, "has ended already") {
		t.Errorf("after its end: code %d, stderr %q", r.code, r.stderr)
	}
}

// TestConsoleEndsWhenItsClientIsKilled, and no other run does.
func TestConsoleEndsWhenItsClientIsKilled(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	console := n.terminal(t, "console", "--stop-grace", "1s", "--driver", "process", "--", "sh")
	ends := console.run()
	attached := n.terminal(t, "run", "-it", "--driver", "process", "--", "sh")
	stays := attached.run()
	passedOn := n.terminal(t, "console", "--stop-grace", "1s", "--driver", "process", "--", "sh")
	taken := passedOn.run()
	hungUp := n.terminal(t, "console", "--stop-grace", "1s", "--driver", "process", "--", "sh")
	hangs := hungUp.run()
	for _, s := range []*screen{console, attached} {
		if err := s.command.Process.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	sendSignal(t, hungUp.command.Process.Pid, syscall.SIGHUP)
	if got := n.awaitStatus(t, hangs, "CANCELED", 2*time.Minute); strings.Contains(got.Message, "its client has gone") {
		t.Errorf("it was not canceled at once: %q", got.Message)
	}
	if got := n.awaitStatus(t, ends, "CANCELED", 2*time.Minute); !strings.Contains(got.Message, "its client has gone") {
		t.Errorf("it was %q", got.Message)
	}
	takes := n.terminal(t, "attach", "--take", taken)
	takes.typeKeys("echo ta''ken\n")
	takes.await("taken")
	passedOn.await("another has taken the input")
	passedOn.end(125)
	takes.typeKeys("\x10\x11")
	takes.await("a console: it ends in 15 seconds")
	takes.end(130)
	if got := n.show(t, taken); got.Status != "RUNNING" {
		t.Errorf("a console that was taken over is %s: %s", got.Status, got.Message)
	}
	n.awaitStatus(t, taken, "CANCELED", 2*time.Minute)
	if got := n.show(t, stays); got.Status != "RUNNING" {
		t.Errorf("a run that needs no client is %s: %s", got.Status, got.Message)
	}
	n.errand(t, "cancel", "--force", stays)
	n.errand(t, "wait", stays)
}

// TestConsoleLivesThroughARestartOfTheDaemon with its client, and not without.
func TestConsoleLivesThroughARestartOfTheDaemon(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	stays := n.terminal(t, "console", "--driver", "process", "--", "sh")
	attached := stays.run()
	left := n.terminal(t, "console", "--stop-grace", "1s", "--driver", "process", "--", "sh")
	alone := left.run()
	n.crash(t)
	if err := left.command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	n.start(t)
	stays.await("attached again")
	stays.typeKeys("echo still he''re\n")
	stays.await("still here")
	if got := n.awaitStatus(t, alone, "CANCELED", 2*time.Minute); !strings.Contains(got.Message, "its client has gone") {
		t.Errorf("it was %q", got.Message)
	}
	stays.typeKeys("echo and sti''ll\n")
	stays.await("and still")
	stays.typeKeys("exit 4\n")
	stays.end(4)
	if got := n.show(t, attached); got.ExitCode == nil || *got.ExitCode != 4 {
		t.Errorf("the run is %+v", got)
	}
}

// TestOnlyOneGivesARunInput: a second one is refused, looks only, or takes it.
func TestOnlyOneGivesARunInput(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	id := n.submit(t, "-it", "--", "sh")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	n.awaitRunning(ctx, t, id)
	first := n.terminal(t, "attach", id)
	first.typeKeys("echo fi''rst\n")
	first.await("first")
	second := n.terminal(t, "attach", id)
	second.await("errand attach --take " + id)
	second.end(125)
	looks := n.terminal(t, "attach", "--no-stdin", id)
	looks.await("first")
	takes := n.terminal(t, "attach", "--take", id)
	takes.typeKeys("echo ta''ken\n")
	takes.await("taken")
	first.await("another has taken the input")
	first.end(125)
	looks.await("taken")
	looks.typeKeys("\x03")
	looks.await("no longer attending run " + id)
	looks.end(130)
	takes.typeKeys("exit 0\n")
	takes.end(0)
}

// TestLongInputArrivesWhole over a pipe, at a command that reads late, and comes back to
// somebody who reads slowly.
func TestLongInputArrivesWhole(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	input := make([]byte, 3<<20)
	_, _ = rand.Read(input)
	sum := sha256.Sum256(input)
	errand := func(args ...string) *exec.Cmd {
		command := exec.Command(filepath.Join(binaries, "errand"), args...)
		command.Env = append(os.Environ(), "ERRAND_ADDRESS="+n.Address)
		command.Stdin = bytes.NewReader(input)
		command.Stderr = os.Stderr
		return command
	}
	output, err := errand("run", "-i", "--driver", "process", "--", "sh", "-c", "sleep 1; sha256sum").Output()
	if err != nil || !strings.HasPrefix(string(output), hex.EncodeToString(sum[:])) {
		t.Errorf("%q, %v; want %x", output, err, sum)
	}
	slow := errand("run", "-i", "--driver", "process", "--", "cat")
	from, err := slow.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := slow.Start(); err != nil {
		t.Fatal(err)
	}
	hash := sha256.New()
	for piece := make([]byte, 128<<10); ; time.Sleep(20 * time.Millisecond) {
		read, err := from.Read(piece)
		hash.Write(piece[:read])
		if err != nil {
			break
		}
	}
	if err := slow.Wait(); err != nil || !bytes.Equal(hash.Sum(nil), sum[:]) {
		t.Errorf("what came back is %x, %v; want %x", hash.Sum(nil), err, sum)
	}
}

// TestAttachPassesSignalsOnWithoutATerminal, and a second Ctrl-C leaves.
func TestAttachPassesSignalsOnWithoutATerminal(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	id := n.submit(t, "-i", "--", "sh", "-c", `trap "echo told" INT; echo begun; while :; do sleep 0.05; done`)
	command := exec.Command(filepath.Join(binaries, "errand"), "attach", id)
	command.Env = append(os.Environ(), "ERRAND_ADDRESS="+n.Address)
	var output, notes lines
	command.Stdout, command.Stderr = &output, &notes
	stdin, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	output.await(t, "begun")
	sendSignal(t, command.Process.Pid, syscall.SIGINT)
	output.await(t, "told")
	sendSignal(t, command.Process.Pid, syscall.SIGINT)
	_ = command.Wait()
	if code := command.ProcessState.ExitCode(); code != 130 || !strings.Contains(notes.text(), "no longer attending run "+id) {
		t.Errorf("code %d, stderr %q", code, notes.text())
	}
	if got := n.show(t, id); got.Status != "RUNNING" {
		t.Errorf("the run is %s: %s", got.Status, got.Message)
	}
	n.errand(t, "cancel", "--force", id)
	n.errand(t, "wait", id)
	mute := n.submit(t, "--", "sh", "-c", "echo mute; sleep 1; exit 6")
	if r := n.errand(t, "attach", mute); r.code != 6 || r.stdout != "mute\n" || !strings.Contains(r.stderr, "has no input") {
		t.Errorf("a command without input: code %d, stdout %q, stderr %q", r.code, r.stdout, r.stderr)
	}
}
