package sandbox

import (
	"context"
	"io"
)

// Execs is a Driver that can run a command beside that of a sandbox which runs: in its
// namespaces, under its limits and with its privileges, and gone with it.
type Execs interface {
	// Exec runs the command and returns how it ended, once its output is written. It is
	// killed when the context ends. A sandbox that does not run is of
	// records.ClassConflict, a user or working directory that is none of ClassInvalid.
	Exec(ctx context.Context, id string, exec Exec) (ExecEnd, error)
}

// Exec is a command to run beside that of a sandbox.
type Exec struct {
	Command []string
	// Env is added to the variables of the sandbox's own command.
	Env []string
	// WorkingDir and User are those of the sandbox's own command when they are empty.
	WorkingDir, User string
	// Stdin is nil for none. The driver may still read of it when Exec has returned,
	// until it ends.
	Stdin io.Reader
	// Stdout and Stderr may be written to by two goroutines. Under a terminal all
	// output is Stdout's.
	Stdout, Stderr io.Writer
	// Terminal is nil for none.
	Terminal *TerminalSize
	// Control brings what happens meanwhile. It may be nil.
	Control <-chan ExecControl
	// Started is called when the command, or what executes it, runs.
	Started func()
}

// TerminalSize is in characters.
type TerminalSize struct{ Rows, Columns uint16 }

// ExecControl is either a new size of the terminal or a signal.
type ExecControl struct {
	Resize *TerminalSize
	Signal int
}

// ExecEnd is how a command has ended.
type ExecEnd struct {
	// Code is 128 + signal when a signal has ended it; 127 when the command is not
	// there, 126 when it can not be executed. Signal is 0 where that can not be told from
	// a command that ends with such a code.
	Code, Signal int32
}

// Roots is a Driver whose sandboxes' files can be seen while they run.
type Roots interface {
	// RootOf returns the path under which the sandbox's root is seen from here. It may
	// be another's as soon as the sandbox has ended: whoever opens it asks again then.
	RootOf(ctx context.Context, id string) (string, error)
}

// Inputs is a Driver whose sandboxes' commands can be given input while they run, if
// their spec says so (stdin or terminal).
type Inputs interface {
	// OpenInput opens what the command of a sandbox that runs is given input through. It
	// may be open several times at once, and closing it ends nothing but itself. A
	// sandbox that does not run is of records.ClassConflict, one whose command takes no
	// input of ClassInvalid.
	OpenInput(ctx context.Context, id string) (Input, error)
}

// Input leads to the command of one sandbox. Write and End are for one goroutine: what
// they give arrives in order, and they block while the command does not read. Resize and
// Signal are for one too, which may be another: they do not wait for what the command has
// not read. Each is carried out before input that is given after it has returned. Close
// makes all of them return; they fail when the command has ended.
type Input interface {
	// Write gives the command input.
	Write(p []byte) (int, error)
	// End lets the command see the end of its input, unless it has a terminal.
	End() error
	// Resize changes the size of the command's terminal, if it has one.
	Resize(rows, columns uint16) error
	// Signal sends a signal to the command's process group.
	Signal(signal int) error
	Close() error
}
