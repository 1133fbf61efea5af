package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/api/codes"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// detachKeysDefault are those of docker.
const detachKeysDefault = "ctrl-p,ctrl-q"

// errDetached ends an attendance whose user has typed the keys for it.
var errDetached = errors.New("detached")

// inputFailure ends an attendance whose run can not be given its input any more.
type inputFailure struct{ err error }

// Error implements error.
func (f *inputFailure) Error() string { return f.err.Error() }

// Unwrap returns why.
func (f *inputFailure) Unwrap() error { return f.err }

// taken tells that another has the run's input.
func (f *inputFailure) taken() bool {
	var failed *failure
	return errors.As(f.err, &failed) && codes.Code(failed.code) == codes.RunAttached
}

// typing gives a run's command what comes from stdin.
type typing struct {
	app *app
	c   *connection
	// take takes the input from whoever has it.
	take bool
	// terminal is stdin, handed over to the command while it runs; nil to pass on what
	// stdin has and nothing else.
	terminal *os.File
	// keys leave the run to itself; there may be none.
	keys []byte
	// signals are passed on; nil for none.
	signals <-chan int32
}

// run passes on until the run has ended or the context ends. It leaves when the user
// detaches, or when the run can not be given its input.
func (t *typing) run(ctx context.Context, leave context.CancelCauseFunc, id string) {
	attach := client.Attach{Run: id, Take: t.take, Signals: t.signals, Stdin: t.app.stdin, Typed: t.app.typed()}
	restore := func() {}
	if t.terminal != nil {
		attach.Stdin = &keyReader{from: t.app.stdin, keys: t.keys}
		resizes, stop := terminalSizes(ctx, t.terminal)
		defer stop()
		attach.Resizes = resizes
	}
	attach.Open = func(again bool, unsure int64) {
		if t.terminal != nil && !again {
			restore = t.app.handOver(t.terminal)
		}
		switch {
		case again && unsure > 0:
			t.app.note("attached again; the last %s may be lost", byteCount(unsure, "of the input", "of the input"))
		case again:
			t.app.note("attached again")
		}
	}
	err := t.c.patient.Attach(ctx, attach)
	restore()
	if errors.Is(err, errDetached) {
		var lost *client.InputLostError
		if errors.As(err, &lost) && ctx.Err() == nil {
			t.app.note("the last %s may not have reached the command", byteCount(lost.Unsure, "of the input", "of the input"))
		}
		leave(errDetached)
		return
	}
	// That it has ended is told by its outcome.
	if err != nil && ctx.Err() == nil && client.CodeOf(err) != codes.RunTerminal {
		leave(&inputFailure{t.explain(err, id)})
	}
}

func (t *typing) explain(err error, id string) error {
	var lost *client.InputLostError
	var failed *client.Error
	isLost, atNode := errors.As(err, &lost), errors.As(err, &failed)
	switch {
	case isLost && atNode:
		return broken(codeInput, "the connection to the node broke, and it is not known whether the last %s reached the command", byteCount(lost.Unsure, "of the input has", "of the input have"))
	case isLost:
		return stdinFailed(lost.Err, lost.Unsure)
	case !atNode:
		return stdinFailed(err, 0)
	}
	err = t.c.explain(err)
	var f *failure
	if errors.As(err, &f) && codes.Code(f.code) == codes.RunAttached {
		f.hint = "'errand attach --take " + id + "' takes the input, 'errand attach --no-stdin " + id + "' only follows."
	}
	return err
}

// stdinFailed says that stdin could not be read to its end, and how much of what was read
// the command may not have.
func stdinFailed(err error, unsure int64) *failure {
	f := broken(codeInput, "read stdin: %s", reasonOf(err))
	if unsure > 0 {
		f.message += "; it is not known whether the last " + byteCount(unsure, "of the input has", "of the input have") + " reached the command"
	}
	return f
}

// typed tells whether a person types what comes from stdin.
func (a *app) typed() bool {
	file, ok := a.stdin.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// stdinTerminal is stdin if that is a terminal.
func (a *app) stdinTerminal() *os.File {
	if !a.typed() {
		return nil
	}
	file, _ := a.stdin.(*os.File)
	return file
}

// handOver lets the keys through as they are until restore is called.
func (a *app) handOver(terminal *os.File) (restore func()) {
	before, err := term.MakeRaw(int(terminal.Fd()))
	if err != nil {
		return func() {} // the keys arrive line by line then
	}
	a.raw.Store(true)
	return func() {
		_ = term.Restore(int(terminal.Fd()), before) // it may be gone
		a.raw.Store(false)
	}
}

// terminalSizes brings the size of a terminal, and each one that it changes to.
func terminalSizes(ctx context.Context, terminal *os.File) (sizes <-chan *errandv1.TerminalSize, stop func()) {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	brought := make(chan *errandv1.TerminalSize)
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case brought <- sizeOf(terminal):
			case <-ctx.Done():
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	})
	return brought, func() {
		signal.Stop(changed)
		cancel()
		watching.Wait()
	}
}

func sizeOf(terminal *os.File) *errandv1.TerminalSize {
	window, err := unix.IoctlGetWinsize(int(terminal.Fd()), unix.TIOCGWINSZ)
	if err != nil || window.Row == 0 || window.Col == 0 {
		return &errandv1.TerminalSize{Rows: 24, Columns: 80}
	}
	return &errandv1.TerminalSize{Rows: uint32(window.Row), Columns: uint32(window.Col)}
}

// keyReader reads what is typed and ends with errDetached behind the keys that detach,
// which it keeps for itself. A part of them is held back until it is clear what it is.
type keyReader struct {
	from io.Reader
	keys []byte

	matched int
	buffer  [4096]byte
	ready   []byte
	err     error
}

// Read implements io.Reader. The end of a terminal is its hangup, at which the command
// is told nothing.
func (k *keyReader) Read(p []byte) (int, error) {
	for len(k.ready) == 0 {
		if k.err != nil {
			return 0, k.err
		}
		n, err := k.from.Read(k.buffer[:])
		for _, key := range k.buffer[:n] {
			if k.add(key) {
				err = errDetached
				break
			}
		}
		if err != nil {
			k.err = errDetached
		}
	}
	n := copy(p, k.ready)
	k.ready = k.ready[n:]
	return n, nil
}

// add takes a key and tells whether it is the last one of those that detach.
func (k *keyReader) add(key byte) bool {
	if len(k.keys) == 0 {
		k.ready = append(k.ready, key)
		return false
	}
	held := append(bytes.Clone(k.keys[:k.matched]), key)
	for !bytes.HasPrefix(k.keys, held) {
		k.ready = append(k.ready, held[0])
		held = held[1:]
	}
	k.matched = len(held)
	return k.matched == len(k.keys)
}

// parseKeys reads keys as in "ctrl-p,ctrl-q"; "none" is no keys.
func parseKeys(text string) ([]byte, error) {
	if text == "none" {
		return nil, nil
	}
	var keys []byte
	for _, name := range strings.Split(text, ",") {
		letter, isControl := strings.CutPrefix(name, "ctrl-")
		switch {
		case len(letter) != 1 || letter[0] <= ' ' || letter[0] > '~':
			return nil, usage("--detach-keys %q: must be keys such as ctrl-p,ctrl-q or x, or none", text)
		case !isControl:
			keys = append(keys, letter[0])
		case letter[0] >= 'a' && letter[0] <= 'z':
			keys = append(keys, letter[0]-'a'+1)
		case letter[0] >= '@' && letter[0] <= '_':
			keys = append(keys, letter[0]-'@')
		default:
			return nil, usage("--detach-keys %q: ctrl- goes with a letter or one of @ [ \\ ] ^ _", text)
		}
	}
	return keys, nil
}
