package process

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/guest/pid"
	"github.com/errand-run/errand/nodes/sandbox/guest/status"
)

// lineStarted is the line that Start adds to a sandbox's file before anything can run.
const lineStarted = "started"

// content is what a sandbox's file holds.
type content struct {
	status status.Status
	// malformed tells that the slots hold something and nothing valid.
	malformed bool
	meta      meta
	// started tells that Start was carried out.
	started bool
	// supervisor and command are zero as long as their lines are not there.
	supervisor, command pid.Ref
}

// encodeFile returns what the file of a sandbox holds before its start, and where the
// next line goes.
func encodeFile(m meta) (content []byte, end int64, err error) {
	line, err := json.Marshal(m)
	if err != nil {
		return nil, 0, err
	}
	end = int64(status.Size + len(line) + 1)
	content = make([]byte, max(end, fileSize))
	copy(content[status.Size:], line)
	content[end-1] = '\n'
	return content, end, nil
}

var errNotWhole = errors.New("the sandbox's file is not whole")

// readFile reads a sandbox's file; one whose creation was cut is an error.
func readFile(path string) (c content, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return content{}, err
	}
	if len(b) < status.Size {
		return content{}, errNotWhole
	}
	written, _, _ := bytes.Cut(b[status.Size:], []byte{0})
	lines := strings.Split(string(written), "\n")
	// What follows the last line break is empty, or being written.
	lines = lines[:len(lines)-1]
	if len(lines) == 0 {
		return content{}, errNotWhole
	}
	if err := json.Unmarshal([]byte(lines[0]), &c.meta); err != nil {
		return content{}, fmt.Errorf("%w: %w", errNotWhole, err)
	}
	c.status, err = status.DecodeOf(c.meta.owner(), b[:status.Size])
	c.malformed = err != nil
	c.started = len(lines) > 1 && lines[1] == lineStarted
	for i, ref := range []*pid.Ref{&c.supervisor, &c.command} {
		if len(lines) > 2+i {
			if *ref, err = pid.Parse(lines[2+i]); err != nil {
				return content{}, err
			}
		}
	}
	return c, nil
}

// read reads the sandbox's file, and takes over the names of processes that stand
// there.
func (x *box) read() (content, error) {
	c, err := readFile(x.path)
	if err != nil {
		return content{}, fmt.Errorf("read sandbox %s: %w", x.meta.Info.ID, err)
	}
	if c.supervisor.PID > 0 {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.supervisor, x.command = c.supervisor, c.command
	}
	return c, nil
}

// locked tells whether a supervisor holds the lock.
func (x *box) locked() bool {
	f, err := os.Open(x.path)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// markStarted takes the lock of the file and notes that the sandbox is started. What
// is returned holds the lock, and stands where the next line goes.
func (x *box) markStarted() (*os.File, error) {
	f, err := os.OpenFile(x.path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		_, err = f.Seek(x.end, io.SeekStart)
	}
	if err == nil {
		_, err = f.WriteString(lineStarted + "\n")
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("mark as started: %w", err)
	}
	return f, nil
}

// Held returns the sandboxes that lie in a driver's directory, which need not be there:
// the files that tell of one, and not those that wait for the next.
func Held(dir string) ([]sandbox.Thing, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var found []sandbox.Thing
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		c, err := readFile(path)
		if err != nil || c.meta.Info.ID == "" {
			continue // a spare one
		}
		thing := sandbox.Thing{Kind: sandbox.KindFile, Name: path, Sandbox: c.meta.Info.ID}
		if info, err := entry.Info(); err == nil {
			thing.Since = info.ModTime()
		}
		found = append(found, thing)
	}
	return found, err
}
