package null

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/errand-run/errand/nodes/sandbox"
)

// fileName is the file in the driver's directory that holds all its sandboxes: one line
// for each change, of which the last of a sandbox counts. A line that is cut was never
// answered for.
const fileName = "sandboxes.jsonl"

// rewriteBytes is how much of the file may tell of what is gone before it is written
// anew with what is there.
const rewriteBytes = 1 << 20

// line is one line of the file.
type line struct {
	// Removed is the id of a sandbox that is gone; else State is what there is.
	Removed string `json:",omitempty"`
	State   *state `json:",omitempty"`
}

// file is the file of all sandboxes. The driver's lock guards it.
type file struct {
	path string
	open *os.File
	// size is the file's; live the part of it that tells of what is there.
	size, live int64
}

// openFile reads the file, if there is one, and opens it for more.
func openFile(dir string) (*file, []*state, error) {
	f := &file{path: filepath.Join(dir, fileName)}
	text, err := os.ReadFile(f.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	states, err := readLines(text[:bytes.LastIndexByte(text, '\n')+1])
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", f.path, err)
	}
	return f, states, f.rewrite(states)
}

// readLines returns the sandboxes that are there, by id.
func readLines(text []byte) ([]*state, error) {
	there := map[string]*state{}
	for text := range bytes.Lines(text) {
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			return nil, err
		}
		if l.State != nil {
			there[l.State.Info.ID] = l.State
		} else {
			delete(there, l.Removed)
		}
	}
	states := make([]*state, 0, len(there))
	for _, s := range there {
		states = append(states, s)
	}
	slices.SortFunc(states, func(a, b *state) int { return strings.Compare(a.Info.ID, b.Info.ID) })
	return states, nil
}

// rewrite puts a file with nothing but these sandboxes in the place of the one there is.
func (f *file) rewrite(states []*state) error {
	var text []byte
	for _, s := range states {
		b, err := encode(line{State: s})
		if err != nil {
			return err
		}
		text = append(text, b...)
	}
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
	return nil
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

// save adds a sandbox's state to the file. The caller holds the lock.
func (d *Driver) save(x *box) error {
	n, err := d.file.add(line{State: &x.state})
	if err != nil {
		return err
	}
	d.file.live += n - x.bytes
	x.bytes = n
	return nil
}

// forget takes a sandbox out of the file. The caller holds the lock.
func (d *Driver) forget(x *box) error {
	if _, err := d.file.add(line{Removed: x.state.Info.ID}); err != nil {
		return err
	}
	d.file.live -= x.bytes
	delete(d.boxes, x.state.Info.ID)
	// What can not be written anew now will be the next time.
	switch gone := d.file.size - d.file.live; {
	case len(d.boxes) == 0:
		d.file.clear()
	case gone > max(rewriteBytes, d.file.live):
		_ = d.file.rewrite(d.states())
	}
	return nil
}

func (d *Driver) states() []*state {
	states := make([]*state, 0, len(d.boxes))
	for _, x := range d.boxes {
		states = append(states, &x.state)
	}
	slices.SortFunc(states, func(a, b *state) int { return strings.Compare(a.Info.ID, b.Info.ID) })
	return states
}

// info of a sandbox as List shows it. The caller holds the lock.
func (x *box) info() sandbox.Info {
	info := x.state.Info
	switch {
	case x.state.Started.IsZero():
		info.State = sandbox.StateCreated
	case x.over:
		info.State = sandbox.StateExited
	default:
		info.State = sandbox.StateRunning
	}
	return info
}
