// Package input is how a command is given input while it runs. Its parent (sandbox-init)
// holds both ends of two pipes that have no name, one of each as descriptors FD and
// ControlFD: whoever may look into the parent opens them there, also after a restart of
// the daemon, and nothing is left when the parent has ended. What is sent are frames, each
// of which is written at once, so that several may write.
//
// The first pipe brings what the command reads, and is full while it does not. The second
// brings what does not wait for that, sizes and signals: each is carried out before input
// that was sent after it, and may be before input that was sent earlier.
package input

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// The numbers of the descriptors in the process that takes the input.
const (
	FD        = 64
	ControlFD = 65
)

// Kind is what a frame is about.
type Kind byte

// The kinds of frames: the first two come through FD, the others through ControlFD.
const (
	// KindData is input for the command.
	KindData Kind = iota + 1
	// KindEnd is the end of it.
	KindEnd
	// KindSize has rows and columns, two bytes each.
	KindSize
	// KindSignal has the number of a signal in one byte.
	KindSignal
)

const (
	headerBytes = 3
	// frameMax is what the kernel writes to a pipe at once or not at all.
	frameMax = 4096
	// DataMax is the most that a frame holds.
	DataMax = frameMax - headerBytes
)

// ErrNone is returned for a process that takes no input.
var ErrNone = errors.New("it takes no input")

// Writer sends frames to one process. It is a sandbox.Input.
type Writer struct{ data, control *os.File }

// Open opens the input of a process, whose number the caller keeps from being
// another's meanwhile.
func Open(pid int) (*Writer, error) {
	data, err := open(pid, FD)
	if err != nil {
		return nil, err
	}
	control, err := open(pid, ControlFD)
	if err != nil {
		return nil, errors.Join(err, data.Close())
	}
	return &Writer{data: data, control: control}, nil
}

func open(pid, number int) (*os.File, error) {
	// Looked at before it is opened, since a command may have changed what its parent has:
	// opening a device does something, and a file is none of ours.
	place, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/fd/"+strconv.Itoa(number), unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("find input: %w", err)
	}
	defer unix.Close(place)
	var stat unix.Stat_t
	if err := unix.Fstat(place, &stat); err != nil {
		return nil, fmt.Errorf("look at input: %w", err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFIFO {
		return nil, ErrNone
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(place), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open input: %w", err)
	}
	return os.NewFile(uintptr(fd), "input"), nil
}

// Write gives the command input. It blocks while the command does not read, until Close.
func (w *Writer) Write(p []byte) (int, error) {
	written := 0
	for written < len(p) {
		n := min(len(p)-written, DataMax)
		if err := send(w.data, KindData, p[written:written+n]); err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}

// End lets the command see the end of its input.
func (w *Writer) End() error { return send(w.data, KindEnd, nil) }

// Resize changes the size of the command's terminal. Like Signal it blocks only while the
// command's parent stands still.
func (w *Writer) Resize(rows, columns uint16) error {
	p := binary.LittleEndian.AppendUint16(nil, rows)
	return send(w.control, KindSize, binary.LittleEndian.AppendUint16(p, columns))
}

// Signal sends a signal to the command's process group.
func (w *Writer) Signal(signal int) error {
	return send(w.control, KindSignal, []byte{byte(signal)}) //nolint:gosec // at most 64
}

// Close ends this writer alone.
func (w *Writer) Close() error { return errors.Join(w.data.Close(), w.control.Close()) }

func send(pipe *os.File, kind Kind, p []byte) error {
	frame := append(make([]byte, 0, headerBytes+len(p)), byte(kind))
	frame = binary.LittleEndian.AppendUint16(frame, uint16(len(p))) //nolint:gosec // at most DataMax
	if _, err := pipe.Write(append(frame, p...)); err != nil {
		return fmt.Errorf("give input: %w", err)
	}
	return nil
}

// Read reads one frame. The bytes are good until the next call with the same buffer,
// which holds DataMax.
func Read(r io.Reader, buffer []byte) (Kind, []byte, error) {
	var header [headerBytes]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, nil, err
	}
	n := int(binary.LittleEndian.Uint16(header[1:]))
	if n > len(buffer) {
		return 0, nil, fmt.Errorf("a frame of %d bytes", n)
	}
	_, err := io.ReadFull(r, buffer[:n])
	return Kind(header[0]), buffer[:n], err
}

// SizeOf is what a frame of KindSize says.
func SizeOf(p []byte) (rows, columns uint16, ok bool) {
	if len(p) != 4 {
		return 0, 0, false
	}
	return binary.LittleEndian.Uint16(p), binary.LittleEndian.Uint16(p[2:]), true
}
