package fence

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/fence/page"
	"github.com/errand-run/errand/nodes/sandbox/cgroup"
)

const (
	// LookInterval is how often a guard looks at the fence: what is killed late is killed
	// later by that.
	LookInterval = 200 * time.Millisecond
	// killMax bounds one attempt to empty a sandbox; another follows.
	killMax = 2 * time.Second
	// killsMax bounds how many sandboxes are killed at one time.
	killsMax = 32
	// idleMax is how long a guard that need not stay finds nothing left of a fenced
	// session before it ends.
	idleMax = time.Minute
	// sayAgain is how long the same error is not logged again.
	sayAgain = time.Minute
)

// Guard kills the sandboxes of a node when its fence has passed. It belongs to one
// goroutine.
type Guard struct {
	// Dir and UUID name the fence, as in page.Open.
	Dir  string
	UUID string
	// CgroupRoot is where cgroups are mounted; empty means cgroup.Root.
	CgroupRoot string
	// Stay keeps the guard for ever; else it ends when the session that it knows is fenced,
	// nothing of it is left, and none has followed for a minute.
	Stay bool
	Log  *zap.Logger

	// said is when an error about a sandbox, or about all of them (""), was logged last:
	// what can not be killed for hours must not fill the memory that the log is in.
	said map[string]time.Duration
}

// Run guards until the context ends. While another guard of this node is at work it
// waits for the end of that.
func (g *Guard) Run(ctx context.Context) error {
	root := g.CgroupRoot
	if root == "" {
		root = cgroup.Root
	}
	parent, err := cgroup.Open(root, cgroup.ParentName(g.UUID))
	if err != nil {
		return fmt.Errorf("guard: it kills by cgroup: %w", err)
	}
	file, err := page.Open(g.Dir, g.UUID)
	if err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	lock, err := g.hold(ctx)
	if err != nil || lock == nil {
		return errors.Join(err, file.Close())
	}
	g.Log.Info("guarding", zap.String("fence", file.Path()), zap.String("cgroup", parent.Name()))
	g.watch(ctx, file, parent)
	return errors.Join(file.Close(), lock.Close())
}

// lockPath is held by the guard that is at work, whose pid it contains.
func lockPath(dir, uuid string) string { return filepath.Join(dir, "guard-"+uuid+".lock") }

// hold waits until this is the guard; nil when the context has ended before.
func (g *Guard) hold(ctx context.Context) (*os.File, error) {
	lock, err := os.OpenFile(lockPath(g.Dir, g.UUID), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("guard: %w", err)
	}
	waiting := false
	for {
		err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("guard: lock %s: %w", lock.Name(), err), lock.Close())
		}
		if !g.Stay {
			return nil, lock.Close() // there is one
		}
		if !waiting {
			g.Log.Info("another guard is at work; waiting for its end", zap.String("lock", lock.Name()))
			waiting = true
		}
		if !pause(ctx, LookInterval) {
			return nil, lock.Close()
		}
	}
	if err := errors.Join(lock.Truncate(0), writePID(lock)); err != nil {
		return nil, errors.Join(fmt.Errorf("guard: note the pid: %w", err), lock.Close())
	}
	return lock, nil
}

func writePID(lock *os.File) error {
	_, err := lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// watch looks at the fence until the context ends or there is nothing left to guard.
func (g *Guard) watch(ctx context.Context, file *page.File, parent *cgroup.Parent) {
	idle := time.Duration(0)
	for {
		now := page.Boottime()
		file.Beat(now)
		passed, first := file.Passed(now)
		if first {
			g.Log.Warn("fencing: the session was not renewed in time", zap.Int64("session", file.Session()), zap.Duration("since", now))
		}
		if !passed {
			idle = 0
		} else if g.kill(ctx, parent) {
			idle = 0
		} else if idle += LookInterval; idle > idleMax && !g.Stay {
			g.Log.Info("nothing is left to guard", zap.Int64("session", file.Session()))
			return
		}
		if !pause(ctx, LookInterval) {
			return
		}
	}
}

// kill empties every sandbox of the node once, but for those that go on without a
// session, and tells whether there was anything to kill or that could not be looked at.
func (g *Guard) kill(ctx context.Context, parent *cgroup.Parent) (some bool) {
	names, err := parent.List()
	if err != nil {
		g.complain("", "the node's cgroups can not be listed", zap.Error(err))
		return true
	}
	var (
		kills sync.WaitGroup
		mu    sync.Mutex
		slots = make(chan struct{}, killsMax)
	)
	for _, name := range names {
		group := parent.Group(name)
		if empty, err := group.Empty(); err == nil && empty || group.Unfenced() {
			continue
		}
		some = true
		slots <- struct{}{}
		kills.Go(func() {
			defer func() { <-slots }()
			within, cancel := context.WithTimeout(ctx, killMax)
			defer cancel()
			killed, err := group.Kill(within)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil && ctx.Err() == nil:
				g.complain(name, "a fenced sandbox is not empty yet", zap.String("sandbox", name), zap.Error(err))
			case killed:
				g.Log.Warn("a fenced sandbox was killed", zap.String("sandbox", name))
			}
		})
	}
	kills.Wait()
	return some
}

// complain logs an error about a sandbox, unless it did so lately. Its caller holds the
// lock of the kills, if there are any.
func (g *Guard) complain(sandbox, text string, fields ...zap.Field) {
	now := page.Boottime()
	if last, ok := g.said[sandbox]; ok && now-last < sayAgain {
		return
	}
	if g.said == nil {
		g.said = map[string]time.Duration{}
	}
	g.said[sandbox] = now
	g.Log.Error(text, fields...)
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
