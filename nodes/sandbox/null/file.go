package null

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/errand-run/errand/nodes/sandbox"
)

// fileName is the file in the driver's directory that holds all its sandboxes: one line
// for each change, of which the last of a sandbox counts. A line that is cut was never
// answered for.
const fileName = "sandboxes.jsonl"

// rewriteBytes is how much of the file may tell of what is gone before it is written
// anew with what is there.
const rewriteBytes = 1 << 20

// lineBytes is about how much of the file tells of one sandbox.
const lineBytes = 512

// line is one line of the file: what there is at the create of a sandbox, what changes
// later, or that it is gone.
type line struct {
	Removed string  `json:",omitempty"`
	State   *state  `json:",omitempty"`
	Change  *change `json:",omitempty"`
}

// state is all of a sandbox.
type state struct {
	Info    sandbox.Info
	Command []string
	// LogPath has the name of when a log was always a directory.
	LogPath string    `json:"LogDir"`
	Started time.Time `json:",omitzero"`
	Ended   time.Time `json:",omitzero"`
	Signal  int32     `json:",omitempty"`
	Killed  bool      `json:",omitempty"`
}

// change is what changes of a sandbox after its create, times in nanoseconds of Unix
// time.
type change struct {
	ID      string
	Started int64 `json:",omitempty"`
	Ended   int64 `json:",omitempty"`
	Signal  int32 `json:",omitempty"`
	Killed  bool  `json:",omitempty"`
}

func (x *box) state() *state {
	info := x.info()
	info.State = 0
	s := &state{Info: info, Command: x.program.command, LogPath: x.logPath, Signal: x.signal, Killed: x.killed}
	if x.started != 0 {
		s.Started = time.Unix(0, x.started)
	}
	if x.ended != 0 {
		s.Ended = time.Unix(0, x.ended)
	}
	return s
}

func (x *box) change() line {
	return line{Change: &change{ID: x.id, Started: x.started, Ended: x.ended, Signal: x.signal, Killed: x.killed}}
}

// file is the file of all sandboxes. The driver's lock guards it.
type file struct {
	path string
	open *os.File
	// size is the file's; live the part of it that tells of what is there.
	size, live int64
}

// load reads the file, if there is one, and opens it for more. It is written anew if
// much of it tells of what is gone.
func (d *Driver) load() error {
	text, err := os.ReadFile(d.file.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	whole := text[:bytes.LastIndexByte(text, '\n')+1]
	d.boxes = make(map[string]*box, len(whole)/lineBytes)
	for text := range bytes.Lines(whole) {
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			return fmt.Errorf("%s: %w", d.file.path, err)
		}
		if err := d.replay(l, len(text)); err != nil {
			return fmt.Errorf("%s: %w", d.file.path, err)
		}
	}
	d.file.size = int64(len(whole))
	if len(whole) < len(text) || d.wasteful() {
		return d.rewrite()
	}
	d.file.open, err = os.OpenFile(d.file.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	return err
}

// replay takes in a line of the file.
func (d *Driver) replay(l line, bytes int) error {
	switch {
	case l.State != nil:
		p, err := d.programs.of(l.State.Command)
		if err != nil {
			return fmt.Errorf("sandbox %s: %w", l.State.Info.ID, err)
		}
		d.programs.enter(p)
		d.drop(d.boxes[l.State.Info.ID])
		x := boxOf(l.State, p)
		x.bytes = bytes
		d.boxes[x.id] = x
		d.file.live += int64(bytes)
	case l.Change != nil:
		x := d.boxes[l.Change.ID]
		if x == nil {
			return fmt.Errorf("sandbox %s changes before it is there", l.Change.ID)
		}
		c := l.Change
		x.started, x.ended, x.signal, x.killed = c.Started, c.Ended, c.Signal, c.Killed
		x.bytes += bytes
		d.file.live += int64(bytes)
	default:
		d.drop(d.boxes[l.Removed])
	}
	return nil
}

func boxOf(s *state, p *program) *box {
	x := &box{
		id: s.Info.ID, run: s.Info.Run, attempt: s.Info.Attempt, placement: s.Info.Placement, program: p, logPath: s.LogPath,
		keys: string(s.Info.StartToken) + string(s.Info.SpecHash), tokenBytes: len(s.Info.StartToken),
		signal: s.Signal, killed: s.Killed,
	}
	if !s.Started.IsZero() {
		x.started = s.Started.UnixNano()
	}
	if !s.Ended.IsZero() {
		x.ended = s.Ended.UnixNano()
	}
	return x
}

// rewrite puts a file with nothing but what is there in the place of the one there is.
func (d *Driver) rewrite() error {
	var text []byte
	boxes := d.sorted()
	bytes := make([]int, len(boxes))
	for i, x := range boxes {
		b, err := encode(line{State: x.state()})
		if err != nil {
			return err
		}
		text, bytes[i] = append(text, b...), len(b)
	}
	f := d.file
	fresh := f.path + ".new"
	if err := os.WriteFile(fresh, text, 0o600); err != nil {
		return err
	}
	if err := os.Rename(fresh, f.path); err != nil {
		return err
	}
	open, err := os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_ = f.close()
	f.open, f.size, f.live = open, int64(len(text)), int64(len(text))
	for i, x := range boxes {
		x.bytes = bytes[i]
	}
	return nil
}

// wasteful tells whether much of the file tells of what is gone.
func (d *Driver) wasteful() bool {
	gone := d.file.size - d.file.live
	return gone > max(rewriteBytes, d.file.live) || len(d.boxes) == 0 && gone > 0
}

func encode(l line) ([]byte, error) {
	b, err := json.Marshal(l)
	return append(b, '\n'), err
}

// add appends a line, all of it or nothing.
func (f *file) add(l line) (bytes int64, err error) {
	b, err := encode(l)
	if err != nil {
		return 0, err
	}
	if f.open == nil {
		return 0, fs.ErrClosed
	}
	if _, err := f.open.Write(b); err != nil {
		return 0, errors.Join(err, f.open.Truncate(f.size))
	}
	f.size += int64(len(b))
	return int64(len(b)), nil
}

// clear empties the file.
func (f *file) clear() {
	if f.open.Truncate(0) == nil {
		f.size, f.live = 0, 0
	}
}

func (f *file) close() error {
	if f.open == nil {
		return nil
	}
	err := f.open.Close()
	f.open = nil
	return err
}

// save adds a line about a sandbox to the file. The caller holds the lock.
func (d *Driver) save(x *box, l line) error {
	n, err := d.file.add(l)
	if err != nil {
		return err
	}
	d.file.live += n
	x.bytes += int(n)
	return nil
}

// forget takes a sandbox out of the file. The caller holds the lock.
func (d *Driver) forget(x *box) error {
	if _, err := d.file.add(line{Removed: x.id}); err != nil {
		return err
	}
	d.drop(x)
	// What can not be written anew now will be the next time.
	switch {
	case len(d.boxes) == 0:
		d.file.clear()
	case d.wasteful():
		_ = d.rewrite()
	}
	return nil
}

// drop takes a sandbox out of what there is. The caller holds the lock.
func (d *Driver) drop(x *box) {
	if x == nil {
		return
	}
	d.file.live -= int64(x.bytes)
	d.programs.leave(x.program)
	delete(d.boxes, x.id)
}

// sorted returns all sandboxes, by id.
func (d *Driver) sorted() []*box {
	boxes := make([]*box, 0, len(d.boxes))
	for _, x := range d.boxes {
		boxes = append(boxes, x)
	}
	slices.SortFunc(boxes, func(a, b *box) int { return strings.Compare(a.id, b.id) })
	return boxes
}

// info of a sandbox as List shows it. The caller holds the lock.
func (x *box) info() sandbox.Info {
	info := sandbox.Info{
		ID: x.id, Run: x.run, Attempt: x.attempt, Placement: x.placement,
		StartToken: []byte(x.keys[:x.tokenBytes]), SpecHash: []byte(x.keys[x.tokenBytes:]),
	}
	switch {
	case x.started == 0:
		info.State = sandbox.StateCreated
	case x.over:
		info.State = sandbox.StateExited
	default:
		info.State = sandbox.StateRunning
	}
	return info
}
