// Package journal keeps a node's journal in one bbolt file.
//
// A change is durable before it is answered, and changes that arrive while the
// disk is busy with earlier ones go together in the next transaction: one fsync
// for all of them. Every value carries a checksum, and the head one over all of
// them, so a bit that the disk turned is a fault too. The file comes into being
// complete, under another name first, so one that is empty or torn is a fault that
// is reported and never taken for a journal without entries: that would let
// commands start twice. So would an older copy of the file that is put back; every
// commit has a number, and the last one stands outside of the disk too, where a
// copy that is behind shows.
package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes"
)

// The names and the limits of a journal.
const (
	// FileName and LockName are the files in the data directory.
	FileName = "journal.db"
	LockName = "journal.lock"
	// Format is the version of the layout.
	Format = "2"
	// ChangesPerCommit bounds the changes that go in one transaction.
	ChangesPerCommit = 1024
	// lockTimeout bounds the wait for bbolt's own lock, behind ours.
	lockTimeout = time.Second
	fileMode    = 0o600
)

var (
	headBucket    = []byte("head")
	entriesBucket = []byte("entries")
	formatKey     = []byte("format")
	metaKey       = []byte("meta")
	tallyKey      = []byte("tally")
	idKey         = []byte("id")
	positionKey   = []byte("position")
)

// Errors of Open.
var (
	// ErrHeld is returned when another process holds the data directory.
	ErrHeld = errors.New("another daemon holds the data directory")
	// ErrDamaged is returned when the file can not be read as a journal.
	ErrDamaged = errors.New("the journal is damaged")
	// ErrFormat is returned when the file is a journal of another version's layout.
	ErrFormat = errors.New("the journal has the layout of another version")
	// ErrClosed is delivered to what is asked of a closed journal.
	ErrClosed = errors.New("the journal is closed")
)

// Journal is a nodes.Journal. Its methods may be called from any goroutine.
type Journal struct {
	lock *os.File
	db   *bolt.DB
	mark *mark
	done chan struct{}

	mu      sync.Mutex
	wake    *sync.Cond
	pending []request
	closed  bool
}

// request is one change, or one load.
type request struct {
	change  nodes.JournalChange
	written func(error)
	loaded  func(nodes.JournalContent, error)
}

var _ nodes.Journal = (*Journal)(nil)

// Open opens the journal of a data directory, which must exist, and makes one if
// there is none. How far it has come is marked in the runtime directory, which
// should be in memory and outlive the daemon; with none, "", an older copy that is
// put back is not noticed here. It starts one goroutine, which Close ends. The error
// is, or wraps, ErrHeld, ErrDamaged or ErrFormat where it is one of those.
func Open(dir, runtimeDir string) (*Journal, error) {
	lock, err := hold(dir)
	if err != nil {
		return nil, err
	}
	db, err := open(filepath.Join(dir, FileName))
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	var mark *mark
	if runtimeDir != "" {
		id, err := identity(db)
		if err == nil {
			mark, err = openMark(runtimeDir, id)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open journal: %w", err), db.Close(), lock.Close())
		}
	}
	j := &Journal{lock: lock, db: db, mark: mark, done: make(chan struct{})}
	j.wake = sync.NewCond(&j.mu)
	go j.run()
	return j, nil
}

// hold locks the directory and leaves the holder's process id in the lock file.
func hold(dir string) (*os.File, error) {
	path := filepath.Join(dir, LockName)
	lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, fileMode)
	if err != nil {
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(path)
		_ = lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w %s: process %s", ErrHeld, dir, strings.TrimSpace(string(holder)))
		}
		return nil, fmt.Errorf("lock data directory %s: %w", dir, err)
	}
	err = lock.Truncate(0)
	if err == nil {
		_, err = lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock data directory %s: %w", dir, err), lock.Close())
	}
	return lock, nil
}

func options() *bolt.Options {
	return &bolt.Options{Timeout: lockTimeout, NoFreelistSync: true, FreelistType: bolt.FreelistMapType}
}

func open(path string) (*bolt.DB, error) {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		if err := found(path); err != nil {
			return nil, fmt.Errorf("make journal %s: %w", path, err)
		}
	} else if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	// bbolt would take an empty file for a new one.
	if info, err := os.Stat(path); err != nil || info.Size() == 0 {
		return nil, errors.Join(fmt.Errorf("open journal %s: %w: the file is empty%s", path, ErrDamaged, advice(ErrDamaged)), err)
	}
	return openSound(path)
}

// found makes an empty journal under another name and renames it into place.
func found(path string) error {
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	db, err := bolt.Open(fresh, fileMode, options())
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		head, err := tx.CreateBucket(headBucket)
		if err != nil {
			return err
		}
		if _, err := tx.CreateBucket(entriesBucket); err != nil {
			return err
		}
		if err := errors.Join(tally{}.store(head), tally{}.storePosition(head, 1)); err != nil {
			return err
		}
		return head.Put(formatKey, []byte(Format))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// key is the place of an entry: run, attempt and placement in order.
func key(of nodes.PlacementKey) []byte {
	out := append([]byte(of.Run), 0)
	out = binary.BigEndian.AppendUint32(out, uint32(of.Attempt))    //nolint:gosec // bits, not a quantity
	return binary.BigEndian.AppendUint32(out, uint32(of.Placement)) //nolint:gosec // bits, not a quantity
}

// Write makes a change durable and then delivers nil.
func (j *Journal) Write(change nodes.JournalChange, deliver func(error)) {
	if !j.add(request{change: change, written: deliver}) {
		deliver(records.Errorf(records.ClassUnavailable, "write journal: %w", ErrClosed))
	}
}

// Load delivers what is durable, after every change written before.
func (j *Journal) Load(deliver func(nodes.JournalContent, error)) {
	if !j.add(request{loaded: deliver}) {
		deliver(nodes.JournalContent{}, records.Errorf(records.ClassUnavailable, "load journal: %w", ErrClosed))
	}
}

func (j *Journal) add(r request) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return false
	}
	j.pending = append(j.pending, r)
	j.wake.Signal()
	return true
}

// Close carries out what was asked for, then lets go of the file and the
// directory. Called again it does nothing.
func (j *Journal) Close() error {
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		<-j.done
		return nil
	}
	j.closed = true
	j.wake.Signal()
	j.mu.Unlock()
	<-j.done
	if err := errors.Join(j.db.Close(), j.mark.close(), j.lock.Close()); err != nil {
		return fmt.Errorf("close journal: %w", err)
	}
	return nil
}

// run carries requests out until the journal is closed and none is left.
func (j *Journal) run() {
	defer close(j.done)
	for {
		batch := j.next()
		if len(batch) == 0 {
			return
		}
		if batch[0].loaded != nil {
			batch[0].loaded(j.load())
			continue
		}
		var position uint64
		err := j.db.Update(func(tx *bolt.Tx) (err error) {
			position, err = apply(tx, batch, j.mark.position())
			return err
		})
		if err != nil {
			err = records.Errorf(records.ClassUnavailable, "write journal %s: %w", j.db.Path(), err)
		} else {
			j.mark.advance(position)
		}
		for _, r := range batch {
			r.written(err)
		}
	}
}

// next waits for a load, or for all the changes that come before one.
func (j *Journal) next() []request {
	j.mu.Lock()
	defer j.mu.Unlock()
	for len(j.pending) == 0 {
		if j.closed {
			return nil
		}
		j.wake.Wait()
	}
	n := 1
	if j.pending[0].loaded == nil {
		for n < len(j.pending) && n < ChangesPerCommit && j.pending[n].loaded == nil {
			n++
		}
	}
	batch := append([]request(nil), j.pending[:n]...)
	j.pending = append(j.pending[:0], j.pending[n:]...)
	return batch
}

func (j *Journal) load() (nodes.JournalContent, error) {
	content, position, err := read(j.db)
	if err != nil {
		return nodes.JournalContent{}, fmt.Errorf("load journal %s: %w", j.db.Path(), err)
	}
	marked := j.mark.position()
	if position > marked {
		j.mark.advance(position) // the first load of a boot
	}
	// One that an older version has written does not say how far it has come.
	content.Reverted = position > 0 && position < marked
	return content, nil
}
