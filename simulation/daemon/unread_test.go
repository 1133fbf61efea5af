package daemon_test

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// unread is errand with more input than a command that reads none takes.
type unread struct {
	command      *exec.Cmd
	stdin        io.WriteCloser
	shown, notes lines
	given        atomic.Int64
	held         chan struct{}
	giving       chan struct{}
}

// giveUnread starts errand and gives it input for as long as it takes some.
func (n *node) giveUnread(t *testing.T, args ...string) *unread {
	t.Helper()
	u := &unread{command: exec.Command(filepath.Join(binaries, "errand"), args...), held: make(chan struct{}), giving: make(chan struct{})}
	u.command.Env = append(os.Environ(), "ERRAND_ADDRESS="+n.Address)
	u.command.Stdout, u.command.Stderr = &u.shown, &u.notes
	var err error
	if u.stdin, err = u.command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := u.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(u.giving)
		// More than all who stand between hold (errand's own pipe, what it reads ahead of
		// sending, the command's pipe and the one to its parent), and less than the window
		// lets go on besides. Errand reads ahead by pieces, so they have to be whole ones:
		// of short pieces it holds less, and this many bytes may never be taken.
		const heldBytes, pieceBytes = 800 << 10, 32 << 10
		for piece := make([]byte, pieceBytes); ; {
			w, err := u.stdin.Write(piece)
			if before := u.given.Add(int64(w)) - int64(w); before < heldBytes && before+int64(w) >= heldBytes {
				close(u.held)
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = u.command.Process.Kill()
		u.end()
	})
	return u
}

func (u *unread) await(t *testing.T) {
	t.Helper()
	select {
	case <-u.held:
	case <-time.After(time.Minute):
		t.Fatalf("only %d bytes of the input are read; stderr %q", u.given.Load(), u.notes.text())
	}
}

// end waits for errand to end and returns its code.
func (u *unread) end() int {
	_ = u.command.Wait()
	<-u.giving
	return u.command.ProcessState.ExitCode()
}

// TestSignalsPassInputThatIsNotRead, also after a crash of the daemon, which loses nothing
// of what it has said to be on its way.
func TestSignalsPassInputThatIsNotRead(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	const waits = `n=0; trap 'n=$((n+1)); echo told $n' INT; echo begun; while [ $n -lt 2 ]; do sleep 0.05; done; `
	id := n.submit(t, "-i", "--", "sh", "-c", waits+`test "$(wc -c)" -ge 100000 && exit 6`)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	n.awaitRunning(ctx, t, id)
	n.awaitOutput(t, id, "begun\n")

	beside := n.giveUnread(t, "exec", "-i", id, "--", "sh", "-c", "trap 'echo told; exit 9' INT; echo begun; while :; do sleep 0.05; done")
	beside.await(t)
	beside.shown.await(t, "begun") // before its trap is set a signal ends it
	sendSignal(t, beside.command.Process.Pid, syscall.SIGINT)
	beside.shown.await(t, "told")
	if code := beside.end(); code != 9 {
		t.Errorf("exec ended with %d; stderr %q", code, beside.notes.text())
	}

	first := n.giveUnread(t, "attach", id)
	first.await(t)
	sendSignal(t, first.command.Process.Pid, syscall.SIGINT)
	first.shown.await(t, "told 1")
	n.restart(t)
	if code := first.end(); code != 125 || !strings.Contains(first.notes.text(), "it is not known whether the last") {
		t.Errorf("attach ended with %d; stderr %q", code, first.notes.text())
	}

	again := exec.Command(filepath.Join(binaries, "errand"), "attach", id)
	again.Env = append(os.Environ(), "ERRAND_ADDRESS="+n.Address)
	var shown lines
	again.Stdout = &shown
	stdin, err := again.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Start(); err != nil {
		t.Fatal(err)
	}
	shown.await(t, "told 1")
	sendSignal(t, again.Process.Pid, syscall.SIGINT)
	shown.await(t, "told 2")
	_ = stdin.Close()
	if _ = again.Wait(); again.ProcessState.ExitCode() != 6 {
		t.Errorf("attach ended with %d; shown %q", again.ProcessState.ExitCode(), shown.text())
	}
}
