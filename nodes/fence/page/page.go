// Package page is the page of memory that holds a node's fence: until when the session
// may run sandboxes, and whether somebody has begun to kill. Daemon, guard and the
// process beside each sandbox share it (package fence says what for). It depends on the
// standard library and x/sys only, so that sandbox-init stays small.
package page

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The page: words of 8 bytes in the machine's own order, for it never leaves the
// machine, and the boot id as text.
const (
	pageSize = 4096

	offsetMagic    = 0
	offsetSession  = 8
	offsetDeadline = 16
	offsetFencedAt = 24
	offsetBeat     = 32
	offsetWindow   = 40
	offsetBootID   = 64
	bootIDMax      = 64
)

// magic marks a page of this layout ("errandF1").
const magic uint64 = 0x3146646e61727265

// latched is set in the word of the deadline when somebody has begun to kill.
const latched uint64 = 1 << 63

// ErrNotInMemory is returned by Open for a directory on a disk: a page of a file there
// may have to wait for it.
var ErrNotInMemory = errors.New("is not in memory")

// File is the fence of one node, as the daemon and those who kill in its stead share
// it. It does what nodes.Fence
// asks for and is safe for concurrent use by any number of
// processes. Its methods touch memory only.
type File struct {
	path string
	page []byte

	magic, session, deadline, fencedAt, beat, window *atomic.Uint64
}

// State is until when a session may run sandboxes, as nodes.FenceState says.
type State struct {
	BootID   string
	Session  int64
	Deadline time.Duration
	FencedAt time.Duration
	Window   time.Duration
}

// Path is where the fence of the node with this uuid is.
func Path(dir, uuid string) string { return filepath.Join(dir, "fence-"+uuid) }

// Open opens the fence of the node with this uuid in a directory in memory, and makes
// it if there is none. The directory must be nobody else's to write.
func Open(dir, uuid string) (*File, error) {
	path := Path(dir, uuid)
	if err := checkDir(dir); err != nil {
		return nil, fmt.Errorf("fence %s: %w", path, err)
	}
	f, err := open(path, os.O_CREATE)
	if err != nil {
		return nil, fmt.Errorf("fence %s: %w", path, err)
	}
	return f, nil
}

func checkDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || int(owner.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("others may write to its directory; give another one or mend its owner and mode: %w", fs.ErrPermission)
	}
	var about unix.Statfs_t
	if err := unix.Statfs(dir, &about); err != nil {
		return err
	}
	if about.Type != unix.TMPFS_MAGIC && about.Type != unix.RAMFS_MAGIC {
		return fmt.Errorf("%s %w: --runtime-dir must name a folder on a tmpfs, as /run is", dir, ErrNotInMemory)
	}
	return nil
}

func open(path string, create int) (*File, error) {
	file, err := os.OpenFile(path, create|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	// The room is taken now, so that a full memory shows here and not as a fault later;
	// what the page holds stays.
	err = unix.Fallocate(int(file.Fd()), 0, 0, pageSize)
	var page []byte
	if err == nil {
		page, err = unix.Mmap(int(file.Fd()), 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	word := func(offset int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&page[offset])) } //nolint:gosec // pages are aligned
	f := &File{
		path: path, page: page,
		magic: word(offsetMagic), session: word(offsetSession), deadline: word(offsetDeadline), fencedAt: word(offsetFencedAt), beat: word(offsetBeat),
		window: word(offsetWindow),
	}
	if have := f.magic.Load(); have != 0 && have != magic {
		return nil, errors.Join(errors.New("it is of another version of Errand: stop what uses it and remove it"), f.Close())
	}
	return f, nil
}

// Path is where the page is.
func (f *File) Path() string { return f.path }

// Close lets go of the page; the file stays for whoever kills.
func (f *File) Close() error {
	if f.page == nil {
		return nil
	}
	page := f.page
	f.page = nil
	return unix.Munmap(page)
}

// Load returns what was last armed; ok is false when nothing is, or when the one who
// armed it has died halfway: then nothing of that session has run yet.
func (f *File) Load() (state State, ok bool) {
	if f.magic.Load() != magic {
		return State{}, false
	}
	// The session is read on both sides of its deadline, so that both belong together.
	for {
		session, deadline := f.session.Load(), f.deadline.Load()
		boot, fencedAt := f.bootID(), f.fencedAt.Load()
		if deadline == 0 {
			return State{}, false
		}
		if f.session.Load() != session || f.deadline.Load() != deadline {
			continue
		}
		state = State{BootID: boot, Session: int64(session), Deadline: time.Duration(deadline &^ latched), Window: time.Duration(f.window.Load())} //nolint:gosec // written from these types
		if deadline&latched != 0 {
			state.FencedAt = time.Duration(max(fencedAt, 1)) //nolint:gosec // written from this type
		}
		return state, true
	}
}

// Arm replaces the state. One of the same session and boot keeps the latch, and with it
// the deadline, that it has. A deadline that is moved nearer must not be nearer than the
// Window of the state from now, nor Window shrink within a session: whoever sleeps until
// he looks again has read the one of before.
func (f *File) Arm(state State) {
	wanted := uint64(max(state.Deadline, 1)) &^ latched
	if state.FencedAt > 0 {
		wanted |= latched
	}
	if have, ok := f.Load(); ok && have.Session == state.Session && have.BootID == state.BootID {
		f.window.Store(uint64(max(state.Window, 0)))
		f.move(wanted, state.FencedAt)
		return
	}
	// Nothing is armed while the parts of another session are written: nothing of it
	// runs yet, and nothing of the one before runs any more.
	f.deadline.Store(0)
	f.magic.Store(magic)
	clear(f.page[offsetBootID : offsetBootID+bootIDMax])
	copy(f.page[offsetBootID:offsetBootID+bootIDMax], state.BootID)
	f.session.Store(uint64(state.Session)) //nolint:gosec // only kept
	f.fencedAt.Store(uint64(max(state.FencedAt, 0)))
	f.window.Store(uint64(max(state.Window, 0)))
	f.deadline.Store(wanted)
}

// move changes the deadline, or sets the latch, of a session that is not fenced.
func (f *File) move(wanted uint64, fencedAt time.Duration) {
	for {
		have := f.deadline.Load()
		if have&latched != 0 || have == 0 {
			return
		}
		if f.change(have, wanted, fencedAt) {
			return
		}
	}
}

// Session is the session that was last armed.
func (f *File) Session() int64 { return int64(f.session.Load()) } //nolint:gosec // written from this type

// Passed tells whether nothing may run any more at this moment of the boottime clock.
// The first who asks after the deadline sets the latch; first tells him so.
func (f *File) Passed(now time.Duration) (passed, first bool) {
	for {
		have := f.deadline.Load()
		switch {
		case f.magic.Load() != magic || have == 0:
			return false, false
		case have&latched != 0:
			return true, false
		case now < time.Duration(have): //nolint:gosec // written from this type
			return false, false
		}
		if f.change(have, have|latched, now) {
			return true, true
		}
	}
}

// change replaces the word of the deadline if it is still what was read; at counts when
// it sets the latch.
func (f *File) change(have, wanted uint64, at time.Duration) bool {
	if wanted&latched != 0 {
		f.fencedAt.Store(uint64(max(at, 1)))
	}
	return f.deadline.CompareAndSwap(have, wanted)
}

// Beat notes that a guard has looked at this moment of the boottime clock.
func (f *File) Beat(now time.Duration) { f.beat.Store(uint64(now)) } //nolint:gosec // not negative

// Beaten is when a guard has last looked, by the boottime clock; 0 when none has.
func (f *File) Beaten() time.Duration { return time.Duration(f.beat.Load()) } //nolint:gosec // written from this type

func (f *File) bootID() string {
	text := f.page[offsetBootID : offsetBootID+bootIDMax]
	for i, b := range text {
		if b == 0 {
			return string(text[:i])
		}
	}
	return string(text)
}

// BeatMax is how long ago a guard may have looked that is at work. A kill takes part
// of it.
const BeatMax = 5 * time.Second

// AtWork tells whether a guard of this node looks at its fence, and says why not.
func (f *File) AtWork() error {
	beaten := f.Beaten()
	if beaten == 0 {
		return errors.New("no guard has looked at the fence yet")
	}
	if since := Boottime() - beaten; since > BeatMax {
		return fmt.Errorf("the guard has not looked at the fence for %s", since.Round(time.Second))
	}
	return nil
}

// Boottime reads the clock that goes on while the machine is suspended.
func Boottime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(fmt.Sprintf("read the boottime clock: %v", err)) // Linux 2.6.39 and newer have it
	}
	return time.Duration(now.Nano())
}
