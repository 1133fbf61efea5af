package containerd

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/errand-run/errand/nodes/sandbox/containerd/filter"
)

// filterPrefix begins the names of files that hold a compiled filter. A sandbox's
// directory can not be called so.
const filterPrefix = ".filter-"

// compiled is the seccomp filter of all sandboxes, once the runtime has compiled it for
// one of them. Before, and where the kernel does not tell it, the runtime compiles it
// for each. It is what the runtime makes of the template's profile, so it is learned
// again by each daemon.
type compiled struct {
	path    atomic.Pointer[string]
	mu      sync.Mutex
	refused bool
}

// file returns the path of the filter for init to install, or nothing. One that
// somebody has removed is learned again.
func (c *compiled) file() string {
	path := c.path.Load()
	if path == nil {
		return ""
	}
	if _, err := os.Stat(*path); err != nil {
		c.path.CompareAndSwap(path, nil)
		return ""
	}
	return *path
}

// clearFilters removes what earlier daemons have learned. A sandbox holds its own by a
// mount.
func clearFilters(dir string) error {
	old, err := filepath.Glob(filepath.Join(dir, filterPrefix+"*"))
	if err != nil {
		return err
	}
	for _, path := range old {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}

// learnFilter reads the filter of a task that the runtime has created and that is not
// started: its one process is the runtime's own, under the filter already.
func (d *Driver) learnFilter(id string, pid uint32) {
	c := &d.compiled
	if pid == 0 || c.path.Load() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused || c.path.Load() != nil || !inGroup(int(pid), d.parent.Group(id).Path()) {
		return
	}
	program, err := filter.Read(int(pid))
	var path string
	if err == nil {
		path, err = keepFilter(d.config.Dir, program)
	}
	if err != nil {
		// Asked again for each sandbox it would be a stop of each.
		c.refused = true
		d.log.Info("the runtime compiles the seccomp filter of each sandbox", zap.Error(err))
		return
	}
	c.path.Store(&path)
}

// keepFilter writes a filter to a file of its own name.
func keepFilter(dir string, program []byte) (string, error) {
	sum := sha256.Sum256(program)
	path := filepath.Join(dir, filterPrefix+hex.EncodeToString(sum[:8]))
	temp := path + ".new"
	if err := os.WriteFile(temp, program, 0o600); err != nil {
		return "", err
	}
	// Whoever a command runs as, and whatever this process masks.
	if err := os.Chmod(temp, 0o444); err != nil {
		return "", err
	}
	return path, os.Rename(temp, path)
}
