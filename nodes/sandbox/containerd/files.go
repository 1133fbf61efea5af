package containerd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/guest"
	"github.com/errand-run/errand/nodes/sandbox/guest/status"
)

const (
	noteFile   = "sandbox.json"
	statusFile = "status"
	// noteBytesMax bounds what is read of a note.
	noteBytesMax = 64 << 10
)

// note is what the driver must know of a sandbox after a restart of the daemon,
// containerd's records lost or not. It holds no environment.
type note struct {
	Run        string `json:"run"`
	App        string `json:"app"`
	Task       string `json:"task,omitempty"`
	Attempt    int32  `json:"attempt"`
	Placement  int32  `json:"placement"`
	Node       string `json:"node"`
	StartToken []byte `json:"startToken"`
	SpecHash   []byte `json:"specHash"`
	// LogPath has the name of when a log was always a directory.
	LogPath    string `json:"logDir"`
	Command    string `json:"command"`
	WorkingDir string `json:"workingDir,omitempty"`
	PidsLimit  int64  `json:"pidsLimit,omitempty"`
}

// start is what a failed start of the command is told with.
func (n note) start() guest.Command {
	return guest.Command{Name: n.Command, WorkingDir: n.WorkingDir, PidsLimit: n.PidsLimit}
}

func newNote(spec sandbox.Spec, command string) note {
	return note{
		Run: spec.Run, App: spec.App, Task: spec.Task, Attempt: spec.Attempt, Placement: spec.Placement, Node: spec.NodeUUID,
		StartToken: spec.StartToken, SpecHash: spec.SpecHash, LogPath: spec.LogPath, Command: command,
		WorkingDir: spec.Spec.GetWorkingDir(), PidsLimit: spec.Spec.GetPidsLimit(),
	}
}

func (d *Driver) dir(id string) string { return filepath.Join(d.config.Dir, id) }

func (d *Driver) statusPath(id string) string { return filepath.Join(d.config.Dir, id, statusFile) }

// makeDir makes a sandbox's directory with its note. One that exists is a conflict,
// and is left alone: an id is used once.
func (d *Driver) makeDir(id string, n note) error {
	dir := d.dir(id)
	if err := os.Mkdir(dir, 0o711); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return records.Errorf(records.ClassConflict, "sandbox %s exists", id)
		}
		return fmt.Errorf("create sandbox %s: %w", id, err)
	}
	content, err := json.Marshal(n)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, noteFile), content, 0o600)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("create sandbox %s: %w", id, err), os.RemoveAll(dir))
	}
	return nil
}

// readNote reads a sandbox's note. A sandbox without a directory is of
// records.ClassNotFound.
func (d *Driver) readNote(id string) (note, error) {
	if err := checkID(id); err != nil {
		return note{}, err
	}
	path := filepath.Join(d.dir(id), noteFile)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return note{}, records.Errorf(records.ClassNotFound, "sandbox %s does not exist", id)
	}
	if err != nil {
		return note{}, fmt.Errorf("read sandbox %s: %w", id, err)
	}
	var n note
	if info.Size() > noteBytesMax {
		return n, fmt.Errorf("read sandbox %s: its note has %d bytes", id, info.Size())
	}
	content, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(content, &n)
	}
	if err != nil {
		return note{}, fmt.Errorf("read sandbox %s: %w", id, err)
	}
	return n, nil
}

// readStatus reads init's status file. malformed tells that it can not be believed; a
// file that is not there says nothing, like an empty one.
func (d *Driver) readStatus(id string) (s status.Status, malformed bool, err error) {
	s, err = status.Read(d.statusPath(id))
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return s, false, nil
	case errors.Is(err, status.ErrMalformed):
		return status.Status{}, true, nil
	}
	return status.Status{}, false, fmt.Errorf("sandbox %s: %w", id, err)
}
