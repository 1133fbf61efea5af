// Package status is the file in which a sandbox's init leaves what became of the
// command. It is shared by the sandbox-init binary, which writes it, and by the
// drivers, which read it, and depends on the
// standard library only.
//
// The file has a fixed size of four slots of SlotSize bytes and is preallocated
// with zeros by the driver. Each slot is written at most once, by one write:
//
//	slot 0  starting                            init has opened the file
//	slot 1  running | exec-failed               the command runs, or never will
//	slot 2  exited | signaled                   how it ended
//	slot 3  exec-failed | exited | signaled     the same, once all that is known of it
//	                                            is, from a supervisor only
//
// The last slot that is valid counts, so a torn write never destroys an earlier
// word. A slot is one line of ASCII, padded with zeros:
//
//	errand1 STATE VALUE STAGE STARTED AT OOM FLAGS [PEAK] CRC\n
//
// VALUE is the exit code, the signal or the errno; STAGE says what failed with that
// errno; STARTED and AT are nanoseconds since 1970; OOM counts kills by the kernel
// for want of memory; FLAGS is "-" or letters (l: processes were left over, i: the
// log is incomplete, r: a signal reached the command, u: none did); PEAK, which is there
// where it is known, is the most memory that the sandbox used, in bytes; CRC is the
// CRC-32C, in eight hex digits, of what stands before it.
//
// The command of a container may own the file, so its content is a claim and not
// a proof: sizes are bounded, values checked, and a link or device in its place is
// refused.
//
// A file that is used again for one sandbox after another names an owner, which goes
// into each CRC but not into the file: what an earlier owner left there says nothing.
package status

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/errand-run/errand/nodes/sandbox/guest/crc32c"
)

const (
	// SlotSize is the size of one slot in bytes.
	SlotSize = 160
	// Size is the size of the file in bytes.
	Size  = slots * SlotSize
	slots = 4
	magic = "errand1"
)

// State is a word of the status file.
type State uint8

// The states, in the order in which they may follow each other.
const (
	// Empty means that init never ran.
	Empty State = iota
	// Starting means that init ran and the command is not known to.
	Starting
	// ExecFailed means that the command never ran; Value is the errno.
	ExecFailed
	// Running means that the command was started.
	Running
	// Exited means that the command ended by itself; Value is its exit code.
	Exited
	// Signaled means that a signal ended the command; Value is its number.
	Signaled
)

var words = [...]string{"empty", "starting", "exec-failed", "running", "exited", "signaled"}

// String returns the word of the state.
func (s State) String() string {
	if int(s) < len(words) {
		return words[s]
	}
	return "state-" + strconv.Itoa(int(s))
}

// slot returns the slot that the status is written to.
func (s Status) slot() int {
	if s.Final {
		return slots - 1
	}
	switch s.State {
	case Starting:
		return 0
	case ExecFailed, Running:
		return 1
	default:
		return 2
	}
}

// Ended tells whether nothing follows this state.
func (s State) Ended() bool { return s == ExecFailed || s == Exited || s == Signaled }

// Stage is what init was doing when the start failed.
type Stage string

// The stages of a start.
const (
	StageNone   Stage = "-"
	StageLookup Stage = "lookup"
	StageChdir  Stage = "chdir"
	StageUser   Stage = "user"
	StageMount  Stage = "mount"
	StageFilter Stage = "filter"
	StageExec   Stage = "exec"
)

// Status is the content of a status file.
type Status struct {
	State State
	// Value is the exit code (0 to 255), the signal (1 to 64) or the errno.
	Value int
	// Stage is set with ExecFailed.
	Stage Stage
	// StartedAt is set from Running on.
	StartedAt time.Time
	// At is when the state was reached.
	At time.Time
	// OOMKills counts the processes of the sandbox that the kernel killed for want
	// of memory. Only the supervisor fills it in.
	OOMKills int
	// MemoryPeak is the most memory that the sandbox has used, in bytes; 0 where it is not
	// known. The supervisor tells it where it counts OOMKills.
	MemoryPeak int64
	// Leftover tells that processes of the command were alive after its end.
	Leftover bool
	// LogIncomplete tells that the log may lack output. Only the supervisor sets it.
	LogIncomplete bool
	// LogUnwritten tells that output could not be written to the log; then it is
	// LogIncomplete too.
	LogUnwritten bool
	// Reach tells whether a signal reached the command before its end. Only the
	// supervisor sets it.
	Reach Reach
	// Final tells that nothing of the sandbox is alive any more and that its log has its
	// end mark. Only the supervisor sets it, on a state that has Ended.
	Final bool
}

// Reach is whether a signal that the supervisor was told to send reached the command.
type Reach uint8

// The zero Reach is that of who does not know it.
const (
	ReachUnknown Reach = iota
	Reached
	Unreached
)

// ExitCode returns the code that a shell would show: the exit code, or 128 and the
// signal. It is meaningful for Exited and Signaled.
func (s Status) ExitCode() int {
	if s.State == Signaled {
		return 128 + s.Value
	}
	return s.Value
}

// encodeSlot returns the slot's bytes, padded to SlotSize, in the file of an owner.
func (s Status) encodeSlot(owner string) []byte {
	stage := s.Stage
	if stage == "" {
		stage = StageNone
	}
	b := make([]byte, 0, SlotSize)
	b = append(b, magic+" "+s.State.String()+" "...)
	b = append(strconv.AppendInt(b, int64(s.Value), 10), ' ')
	b = append(b, string(stage)+" "...)
	b = append(strconv.AppendInt(b, nanos(s.StartedAt), 10), ' ')
	b = append(strconv.AppendInt(b, nanos(s.At), 10), ' ')
	b = append(strconv.AppendInt(b, int64(s.OOMKills), 10), ' ')
	b = append(b, s.flags()+" "...)
	if s.MemoryPeak > 0 {
		b = append(strconv.AppendInt(b, s.MemoryPeak, 10), ' ')
	}
	sum := strconv.FormatUint(uint64(sumOf(owner, b)), 16)
	b = append(b, strings.Repeat("0", 8-len(sum))+sum+"\n"...)
	return append(b, make([]byte, SlotSize-len(b))...)
}

func sumOf(owner string, b []byte) uint32 { return crc32c.Update(crc32c.Sum([]byte(owner)), b) }

func (s Status) flags() string {
	f := ""
	if s.Leftover {
		f += "l"
	}
	if s.LogIncomplete {
		f += "i"
	}
	if s.LogUnwritten {
		f += "w"
	}
	switch s.Reach {
	case Reached:
		f += "r"
	case Unreached:
		f += "u"
	}
	if f == "" {
		return "-"
	}
	return f
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func fromNanos(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n)
}

// Encode returns a whole file that holds only this status.
func Encode(s Status) []byte { return EncodeOf("", s) }

// EncodeOf is Encode for a file that names an owner.
func EncodeOf(owner string, s Status) []byte {
	b := make([]byte, Size)
	if s.State != Empty {
		copy(b[s.slot()*SlotSize:], s.encodeSlot(owner))
	}
	return b
}

// ErrMalformed is returned when a file holds something and none of it is valid.
var ErrMalformed = errors.New("malformed status file")

// Decode reads a file's content. Nothing but zeros, or nothing at all, is Empty.
func Decode(b []byte) (Status, error) { return DecodeOf("", b) }

// DecodeOf decodes the content of a file that names an owner; what another owner has
// written is not valid.
func DecodeOf(owner string, b []byte) (Status, error) {
	if len(b) > Size {
		return Status{}, fmt.Errorf("%w: more than %d bytes", ErrMalformed, Size)
	}
	if len(bytes.Trim(b, "\x00")) == 0 {
		return Status{}, nil
	}
	for slot := slots - 1; slot >= 0; slot-- {
		from, to := slot*SlotSize, (slot+1)*SlotSize
		if to > len(b) {
			continue
		}
		s, ok := decodeSlot(owner, b[from:to])
		s.Final = slot == slots-1 && s.State.Ended()
		if ok && s.slot() == slot {
			return s, nil
		}
	}
	return Status{}, ErrMalformed
}

func decodeSlot(owner string, b []byte) (Status, bool) {
	end := bytes.IndexByte(b, '\n')
	if end < 0 {
		return Status{}, false
	}
	line := string(b[:end])
	fields := strings.Split(line, " ")
	if len(fields) != 9 && len(fields) != 10 || fields[0] != magic {
		return Status{}, false
	}
	crc := fields[len(fields)-1]
	last := len(line) - len(crc)
	sum, err := strconv.ParseUint(crc, 16, 32)
	if err != nil || len(crc) != 8 || uint32(sum) != sumOf(owner, b[:last]) {
		return Status{}, false
	}
	var s Status
	if !s.parse(fields) || !s.plausible() {
		return Status{}, false
	}
	return s, true
}

func (s *Status) parse(f []string) bool {
	for i, w := range words {
		if f[1] == w {
			s.State = State(i)
		}
	}
	value, e1 := strconv.ParseInt(f[2], 10, 32)
	started, e2 := strconv.ParseInt(f[4], 10, 64)
	at, e3 := strconv.ParseInt(f[5], 10, 64)
	oom, e4 := strconv.ParseInt(f[6], 10, 32)
	if e1 != nil || e2 != nil || e3 != nil || e4 != nil || oom < 0 {
		return false
	}
	if len(f) == 10 {
		peak, err := strconv.ParseInt(f[8], 10, 64)
		if err != nil || peak <= 0 {
			return false
		}
		s.MemoryPeak = peak
	}
	s.Value, s.OOMKills = int(value), int(oom)
	s.StartedAt, s.At = fromNanos(started), fromNanos(at)
	switch stage := Stage(f[3]); stage {
	case StageNone, StageLookup, StageChdir, StageUser, StageMount, StageFilter, StageExec:
		s.Stage = stage
	default:
		return false
	}
	s.Leftover = strings.Contains(f[7], "l")
	s.LogIncomplete = strings.Contains(f[7], "i")
	s.LogUnwritten = strings.Contains(f[7], "w")
	switch {
	case strings.Contains(f[7], "r"):
		s.Reach = Reached
	case strings.Contains(f[7], "u"):
		s.Reach = Unreached
	}
	return s.flags() == f[7]
}

// plausible checks what a state may carry.
func (s *Status) plausible() bool {
	switch s.State {
	case Starting, Running:
		return s.Value == 0 && s.Stage == StageNone
	case ExecFailed:
		return s.Value > 0 && s.Value < 4096 && s.Stage != StageNone
	case Exited:
		return s.Value >= 0 && s.Value <= 255 && s.Stage == StageNone
	case Signaled:
		return s.Value >= 1 && s.Value <= 64 && s.Stage == StageNone
	default:
		return false
	}
}

// Create preallocates a status file for init, which runs as uid and gid. The path
// must not exist.
func Create(path string, uid, gid int) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("create status file: %w", err)
	}
	_, err = f.Write(make([]byte, Size))
	if err == nil && (uid != os.Geteuid() || gid != os.Getegid()) {
		err = f.Chown(uid, gid)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		_ = os.Remove(path)
		return fmt.Errorf("create status file %s: %w", path, err)
	}
	return nil
}

// Read reads a status file. It follows no link and never blocks. A file that is
// not there is an error that errors.Is finds to be fs.ErrNotExist.
func Read(path string) (Status, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return Status{}, fmt.Errorf("read status file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Status{}, fmt.Errorf("read status file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return Status{}, fmt.Errorf("read status file %s: %w: not a regular file", path, ErrMalformed)
	}
	b, err := io.ReadAll(io.LimitReader(f, Size+1))
	if err != nil {
		return Status{}, fmt.Errorf("read status file %s: %w", path, err)
	}
	s, err := Decode(b)
	if err != nil {
		return Status{}, fmt.Errorf("read status file %s: %w", path, err)
	}
	return s, nil
}

// File is a status file that is open for writing.
type File struct {
	f     *os.File
	owner string
}

// Open opens a preallocated status file, close-on-exec.
func Open(path string) (*File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open status file: %w", err)
	}
	return &File{f: f}, nil
}

// On takes over a file that is open for writing, for an owner.
func On(f *os.File, owner string) *File { return &File{f: f, owner: owner} }

// Write writes a status to its slot.
func (f *File) Write(s Status) error {
	if s.State == Empty {
		return errors.New("write status file: empty status")
	}
	if _, err := f.f.WriteAt(s.encodeSlot(f.owner), int64(s.slot()*SlotSize)); err != nil {
		return fmt.Errorf("write status file: %w", err)
	}
	return nil
}

// Sync makes what was written durable.
func (f *File) Sync() error { return f.f.Sync() }

// SyncData does so for a file whose place on the disk is durable already: it does not
// wait for what else the file system knows of it.
func (f *File) SyncData() error {
	for {
		if err := syscall.Fdatasync(int(f.f.Fd())); err != syscall.EINTR {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }
