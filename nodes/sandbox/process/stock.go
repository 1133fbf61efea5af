package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

const (
	// fileSize is that of a sandbox's file, one block of most disks. Nothing but a
	// working directory of thousands of letters needs more.
	fileSize = 4096
	// spareMax is how many files are kept for sandboxes to come.
	spareMax   = 64
	filePrefix = "file-"
	fileMode   = 0o600
)

// stock hands out the files of sandboxes, and takes them back: making one, having it
// found again after a loss of power, and removing it cost more than a short command.
// A file keeps its name, its block and its length, so that only its content has to be
// synced.
type stock struct {
	dir string

	mu sync.Mutex
	// spare are the paths of files without a sandbox; next is the number of the next
	// new file.
	spare []string
	next  int
}

// place writes the content of a new sandbox into a spare file, or into a new one.
func (s *stock) place(content []byte) (path string, err error) {
	for {
		path, fresh := s.take()
		if fresh {
			return path, found(path, content)
		}
		if err := rewrite(path, content); err == nil {
			return path, nil
		} else if !errors.Is(err, os.ErrNotExist) {
			return path, err
		}
		// Somebody has removed it.
	}
}

func (s *stock) take() (path string, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.spare); n > 0 {
		path, s.spare = s.spare[n-1], s.spare[:n-1]
		return path, false
	}
	s.next++
	return filepath.Join(s.dir, filePrefix+strconv.Itoa(s.next)), true
}

// found makes a file and has it found again after a loss of power.
func found(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	if errors.Is(err, os.ErrNotExist) {
		// Somebody has removed the directory under the daemon.
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func rewrite(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(content, 0)
	return errors.Join(err, f.Close())
}

var blank = make([]byte, fileSize)

// giveBack takes the file of a sandbox that is removed. One that is not ours, or too
// many, is removed. A loss of power may bring the sandbox back, as it may bring back a
// file that was removed.
func (s *stock) giveBack(path string) error {
	if number(path) == 0 || !s.wants() || s.clear(path) != nil {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove its file: %w", err)
		}
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spare = append(s.spare, path)
	return nil
}

func (s *stock) wants() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.spare) < spareMax
}

// clear makes a file say nothing.
func (s *stock) clear(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(blank, 0)
	if info, statErr := f.Stat(); err == nil && (statErr != nil || info.Size() != fileSize) {
		err = errors.Join(statErr, f.Truncate(fileSize))
	}
	return errors.Join(err, f.Close())
}

// know keeps the number of a file that is there from being given again.
func (s *stock) know(path string) { s.next = max(s.next, number(path)) }

// number returns that of a file of the stock, and 0 for any other.
func number(path string) int {
	digits, ok := strings.CutPrefix(filepath.Base(path), filePrefix)
	n, err := strconv.Atoi(digits)
	if !ok || err != nil || n < 0 {
		return 0
	}
	return n
}
