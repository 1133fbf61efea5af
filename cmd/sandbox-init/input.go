package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/sandbox/guest/input"
)

// terminalLimit is how long the output on the terminal of a command that has ended is
// read, if something else has it still.
const terminalLimit = 2 * time.Second

// commandInput is what a command is given input through. Nothing of it is made for a
// command without.
type commandInput struct {
	// data brings frames of what it reads, for sink: the write end of a pipe or the
	// terminal's master, which does not block. control brings frames of what does not wait
	// for that.
	data, control *os.File
	sink          int
	// master is the end of the terminal that the output is read of.
	master int
}

// openInput makes the command's input, and its terminal, which is all of its streams.
func (c *command) openInput() error {
	if !c.stdin {
		return nil
	}
	var err error
	if c.data, err = openFrames(input.FD); err != nil {
		return err
	}
	if c.control, err = openFrames(input.ControlFD); err != nil {
		return err
	}
	if c.terminal {
		return c.openTerminal()
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("make input: %w", err)
	}
	c.files, c.sink = []uintptr{uintptr(pipe[0])}, pipe[1]
	return unix.SetNonblock(c.sink, true)
}

// openFrames makes a pipe whose other end is the descriptor of a number. Held by this
// process, it has no end but a frame.
func openFrames(number int) (*os.File, error) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make input: %w", err)
	}
	if err := unix.Dup3(pipe[1], number, unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("make input: %w", err)
	}
	_ = unix.Close(pipe[1])
	return os.NewFile(uintptr(pipe[0]), "input"), nil
}

func (c *command) openTerminal() error {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open terminal: %w", err)
	}
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return fmt.Errorf("unlock terminal: %w", err)
	}
	slave, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return fmt.Errorf("open terminal: %w", errno)
	}
	if c.user != nil {
		if err := unix.Fchown(int(slave), int(c.user.Uid), -1); err != nil {
			return fmt.Errorf("hand over terminal: %w", err)
		}
	}
	setSize(master, 24, 80)
	// Its own descriptor, since the other is closed when the output has its end.
	if c.sink, err = unix.FcntlInt(uintptr(master), unix.F_DUPFD_CLOEXEC, 3); err != nil {
		return fmt.Errorf("open terminal: %w", err)
	}
	c.master, c.files = master, []uintptr{slave, slave, slave}
	c.attr.Setctty, c.attr.Ctty = true, 0
	return unix.SetNonblock(c.sink, true) // and the master, which is the same
}

func setSize(terminal int, rows, columns uint16) {
	_ = unix.IoctlSetWinsize(terminal, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
}

// threads is how many the input may keep in the kernel.
func (c *command) threads() int {
	if c.stdin {
		return 2
	}
	return 0
}

// closeFiles closes this process's ends of what the command has.
func (c *command) closeFiles() {
	for i, fd := range c.files {
		if i == 0 || fd != c.files[0] {
			_ = unix.Close(int(fd))
		}
	}
}

// takeInput begins to give the command what comes, until this process ends.
func (c *command) takeInput(group *processGroup) {
	if c.stdin {
		go c.receive(group)
	}
}

// receive waits either for input or, while the command has not taken all of what came, for
// it to read; for what does not wait for that it waits always.
func (c *command) receive(group *processGroup) {
	buffer := make([]byte, input.DataMax)
	var left []byte
	for {
		fds := []unix.PollFd{pollFor(c.control, unix.POLLIN), pollFor(c.data, unix.POLLIN)}
		if len(left) > 0 {
			fds[1] = unix.PollFd{Fd: int32(c.sink), Events: unix.POLLOUT} //nolint:gosec // a descriptor
		}
		if _, err := unix.Poll(fds, -1); err != nil {
			continue // EINTR
		}
		// Once more, and before the input: what was sent before it has come by now.
		for readable(c.control) {
			if !c.obey(group) {
				return
			}
		}
		if fds[1].Revents == 0 {
			continue
		}
		if len(left) == 0 {
			kind, p, err := input.Read(c.data, buffer)
			switch {
			case err != nil:
				return
			case kind == input.KindData:
				left = p
			case kind == input.KindEnd && !c.terminal && c.sink >= 0:
				_ = unix.Close(c.sink)
				c.sink = -1
			}
		}
		left = c.give(left)
	}
}

func pollFor(file *os.File, events int16) unix.PollFd {
	return unix.PollFd{Fd: int32(file.Fd()), Events: events} //nolint:gosec // a descriptor
}

func readable(file *os.File) bool {
	for {
		n, err := unix.Poll([]unix.PollFd{pollFor(file, unix.POLLIN)}, 0)
		if err != unix.EINTR {
			return n > 0
		}
	}
}

// obey carries out a frame of what does not wait for the command to read.
func (c *command) obey(group *processGroup) (more bool) {
	var buffer [16]byte
	kind, p, err := input.Read(c.control, buffer[:])
	if err != nil {
		return false
	}
	switch kind {
	case input.KindSize:
		if rows, columns, ok := input.SizeOf(p); ok && c.terminal {
			setSize(c.sink, rows, columns)
		}
	case input.KindSignal:
		if len(p) == 1 {
			group.signal(unix.Signal(p[0]))
		}
	}
	return true
}

// give returns what the command does not take now. It passes over what it does not read
// any more.
func (c *command) give(p []byte) (left []byte) {
	for len(p) > 0 && c.sink >= 0 {
		n, err := unix.Write(c.sink, p)
		switch err {
		case nil:
			p = p[n:]
		case unix.EINTR:
		case unix.EAGAIN:
			return p
		default:
			return nil
		}
	}
	return nil
}

// showTerminal writes what stands on the terminal to stdout, and closes written when it
// has its end; without a terminal it has.
func (c *command) showTerminal() (written chan struct{}) {
	written = make(chan struct{})
	if !c.terminal {
		close(written)
		return written
	}
	go func() {
		defer close(written)
		buffer := make([]byte, 32<<10)
		for {
			n, err := unix.Read(c.master, buffer)
			if err == unix.EINTR {
				continue
			}
			if err == unix.EAGAIN {
				_, _ = unix.Poll([]unix.PollFd{{Fd: int32(c.master), Events: unix.POLLIN}}, -1) //nolint:gosec // a descriptor
				continue
			}
			if n <= 0 {
				return // all have closed it
			}
			for p := buffer[:n]; len(p) > 0; {
				m, err := unix.Write(1, p)
				if err != nil && err != unix.EINTR {
					return
				}
				p = p[max(m, 0):]
			}
		}
	}()
	return written
}
