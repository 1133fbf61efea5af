// Package guest carries the static binary sandbox-init (cmd/sandbox-init) within the
// daemon's binary and puts it where sandboxes can use it.
//
// The binary is built by `make build` into the folder bin and embedded with it; in a
// fresh clone only a README is there, the module still builds, and Install says what
// is missing.
package guest

import (
	"crypto/sha256"
	"debug/buildinfo"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/guest/status"
)

// Name is the file name of the binary.
const Name = "sandbox-init"

//go:embed bin
var bin embed.FS

// ErrNotBuilt is returned when the daemon was built without sandbox-init.
var ErrNotBuilt = errors.New("this build holds no sandbox-init: run `make build`, or name the binary with --sandbox-init PATH")

// Install puts the embedded binary into a directory and returns its path. The name
// holds the content's hash: what is there already is kept, and sandboxes of an
// earlier daemon keep theirs.
func Install(dir string) (path string, err error) {
	content, err := bin.ReadFile("bin/" + Name)
	if err != nil {
		return "", ErrNotBuilt
	}
	return installContent(dir, content)
}

// InstallFile does the same with a binary that the operator names.
func InstallFile(dir, file string) (path string, err error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("install %s: %w", Name, err)
	}
	return installContent(dir, content)
}

// Verify tells whether a file that the operator names is a sandbox-init. Anything
// else would be noticed by the first command only, which it would not start.
func Verify(file string) error {
	if _, err := os.Stat(file); err != nil {
		return fmt.Errorf("%s: %w", Name, err)
	}
	built, err := buildinfo.ReadFile(file)
	if err != nil {
		return fmt.Errorf("%s: %s is not one: %w", Name, file, err)
	}
	if filepath.Base(built.Path) != Name {
		return fmt.Errorf("%s: %s is not one but %s", Name, file, built.Path)
	}
	return nil
}

func installContent(dir string, content []byte) (string, error) {
	sum := sha256.Sum256(content)
	path := filepath.Join(dir, Name+"-"+hex.EncodeToString(sum[:8]))
	if there, err := os.ReadFile(path); err == nil && sha256.Sum256(there) == sum {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("install %s: %w", Name, err)
	}
	f, err := os.CreateTemp(dir, Name+".*")
	if err != nil {
		return "", fmt.Errorf("install %s: %w", Name, err)
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(0o555)
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("install %s: %w", Name, err), ignoreAbsent(os.Remove(f.Name())))
	}
	return path, nil
}

func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Command is what the words of a failed start name.
type Command struct {
	// Name is the command's first word.
	Name string
	// WorkingDir is the directory that the run asks for.
	WorkingDir string
	// PidsLimit is the run's own limit of processes; 0 without one.
	PidsLimit int64
}

// StartError says why init could not start the command, in the contract's words. s
// must be ExecFailed.
func StartError(s status.Status, command Command) *sandbox.StartError {
	errno := syscall.Errno(s.Value)
	e := &sandbox.StartError{Permanent: true, Reason: recordv1.Reason_REASON_START_ERROR}
	switch s.Stage {
	case status.StageChdir:
		e.Message = fmt.Sprintf("working directory %q: %v", command.WorkingDir, errno)
	case status.StageMount:
		e.Message = fmt.Sprintf("mount /proc: %v", errno)
		e.Permanent = false
	case status.StageFilter:
		e.Message = fmt.Sprintf("seccomp filter: %v", errno)
		e.Permanent = false
	case status.StageLookup:
		e.Message = fmt.Sprintf("command %q: %v", command.Name, errno)
		e.Reason = execReason(errno)
	default:
		e.Message = fmt.Sprintf("command %q: %v", command.Name, errno)
		e.Reason = execReason(errno)
		if errno == syscall.ENOENT {
			e.Message = fmt.Sprintf("command %q: its interpreter does not exist", command.Name)
		}
	}
	switch {
	case errno == syscall.EAGAIN && command.PidsLimit > 0:
		// Another try meets the same limit.
		e.Message = fmt.Sprintf("command %q: no process could be made for it within the run's limit of %d processes (--pids-limit)", command.Name, command.PidsLimit)
	case errno == syscall.ENOMEM || errno == syscall.EAGAIN:
		e.Permanent = false
	}
	return e
}

func execReason(errno syscall.Errno) recordv1.Reason {
	switch errno {
	case syscall.ENOENT, syscall.ENOTDIR:
		return recordv1.Reason_REASON_NOT_FOUND
	case syscall.EACCES, syscall.ENOEXEC, syscall.EISDIR, syscall.EPERM, syscall.ETXTBSY, syscall.ELOOP, syscall.ELIBBAD:
		return recordv1.Reason_REASON_NOT_EXECUTABLE
	default:
		return recordv1.Reason_REASON_START_ERROR
	}
}
