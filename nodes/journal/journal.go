// Package journal keeps a node's journal in one file that is appended to.
//
// A change is durable before it is answered, and changes that arrive while the
// disk is busy with earlier ones go together in the next batch: one write and one
// sync for all of them, into room that was made before. A batch takes whole sectors,
// each with a checksum that hangs together with all before it. So a batch whose write
// a loss of power has cut short, which nobody was told of, is told from damage: it is
// dropped, and everything else that is not what was written is refused. A journal is
// never taken for one without entries: that would let commands start twice. Nor is an
// older copy that is put back; every batch has a number, and the last one stands
// outside of the disk too, where a copy that is behind shows.
//
// When enough was appended, what is still of use is written to another file, which
// then takes the name. So is a journal of the layout before, a bbolt file. A file that
// could not be written or synced is not written again: another one takes its place
// before the next batch.
//
// sector, change and head say what the bytes mean and touch no disk; log and compact
// write them, by way of disk; legacy reads the layout before.
package journal

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/errand-run/errand/cluster/lockfile"
	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes"
)

// The names and the limits of a journal.
const (
	// FileName and LockName are the files in the data directory.
	FileName = "journal.db"
	LockName = "journal.lock"
	// Format is the version of the layout.
	Format = "3"
	// ChangesPerCommit bounds the changes that go in one batch.
	ChangesPerCommit = 1024
	fileMode         = 0o600
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
	path string
	lock *os.File
	mark *mark
	done chan struct{}

	// Of the goroutine that carries requests out.
	log        *log
	compaction *compaction
	wrote      bool

	mu      sync.Mutex
	wake    *sync.Cond
	pending []request
	closed  bool
}

// request is one change, or one load, or news of a compaction.
type request struct {
	change    nodes.JournalChange
	written   func(error)
	loaded    func(nodes.JournalContent, error)
	compacted *compaction
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
	j, err := open(directory(dir), filepath.Join(dir, FileName), runtimeDir, roomBytes)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	j.lock = lock
	go j.run()
	return j, nil
}

// open opens the journal of a disk, whose directory is held. The path is that of the
// file.
func open(d disk, path, runtimeDir string, room int64) (*Journal, error) {
	log, err := openFile(d, path, room)
	if err != nil {
		return nil, fmt.Errorf("open journal %s: %w%s", path, err, advice(err))
	}
	j := &Journal{path: path, log: log, done: make(chan struct{})}
	if runtimeDir != "" {
		if j.mark, err = openMark(runtimeDir, log.head.id); err != nil {
			return nil, errors.Join(fmt.Errorf("open journal: %w", err), log.file.Close())
		}
	}
	j.wake = sync.NewCond(&j.mu)
	if err := j.settle(); err != nil {
		return nil, errors.Join(fmt.Errorf("open journal %s: %w", path, err), j.log.file.Close(), j.mark.close())
	}
	return j, nil
}

// settle makes durable what is read at the start, for others act by it. The life before
// may have been ended between the write of its last batch and the sync, or after a sync
// that failed: then the kernel has what the disk does not, and a sync that works now
// does not say that it has all. So the file is made anew, unless it was left on purpose;
// where that can not be, on a full disk, what there is is written again in its place,
// and zeros over what may be left behind it, which takes no room. If that and its sync
// succeed the file is as good as another; it must be synced at least.
func (j *Journal) settle() error {
	if j.log.settled {
		return nil
	}
	if err := j.rewrite(); err == nil {
		return nil
	}
	err := j.log.again()
	j.log.broken = true // until it is known to be good; the next batch makes another
	if syncErr := j.log.file.Sync(); syncErr != nil {
		return syncErr
	}
	j.log.broken = err != nil // of a file system that needs room even for that
	return nil
}

// openFile opens the file, or makes one if there is none, or makes one of what one of
// the layout before holds.
func openFile(d disk, path string, room int64) (*log, error) {
	_ = d.remove(freshName) // one that was not finished
	f, err := d.open(FileName)
	if errors.Is(err, fs.ErrNotExist) {
		return found(d, rand.Text(), room, 1, func(*log) error { return nil })
	}
	if err != nil {
		return nil, err
	}
	begin := make([]byte, firstSector)
	n, err := f.ReadAt(begin, 0)
	switch {
	case n == 0 && errors.Is(err, io.EOF):
		err = fmt.Errorf("%w: the file is empty", ErrDamaged)
	case err != nil && !errors.Is(err, io.EOF):
	case isAppended(begin[:n]):
		var l *log
		var all *held
		if l, all, err = openLog(d, f, begin[:n], room); err == nil {
			_, err = all.content()
		}
		if err == nil {
			// The life before may have been ended before the name was durable.
			err = d.sync()
		}
		if err == nil {
			return l, nil
		}
	default:
		if err = f.Close(); err != nil {
			return nil, err
		}
		return convert(d, path, room)
	}
	return nil, errors.Join(err, f.Close())
}

// found makes a file that holds what fill writes to it and nothing else.
func found(d disk, id string, room int64, position uint64, fill func(*log) error) (*log, error) {
	l, err := newLog(d, id, room)
	if err != nil {
		return nil, fmt.Errorf("make it: %w", err)
	}
	l.begin(position)
	if err = fill(l); err != nil {
		return nil, errors.Join(fmt.Errorf("make it: %w", err), l.discard())
	}
	if len(l.payload) > positionBytes {
		if err = l.write(); err != nil {
			return nil, errors.Join(fmt.Errorf("make it: %w", err), l.discard())
		}
	}
	if err = l.seal(position); err != nil {
		if l.named {
			err = errors.Join(err, l.file.Close())
		}
		return nil, fmt.Errorf("make it: %w", err)
	}
	return l, nil
}

// advice says what to do about a journal that can not be used.
func advice(err error) string {
	if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrFormat) {
		return ""
	}
	return ": put a good copy in its place; if there is none, move it away and start once with --accept-loss-of journal, " +
		"which stops what still runs (see \"The daemon\" in docs/troubleshooting.md)"
}

// hold locks the directory and leaves the holder's process id in the lock file.
func hold(dir string) (*os.File, error) {
	lock, err := lockfile.Take(filepath.Join(dir, LockName))
	var taken *lockfile.TakenError
	switch {
	case errors.As(err, &taken):
		return nil, fmt.Errorf("%w %s%s", ErrHeld, dir, taken.By())
	case err != nil:
		return nil, fmt.Errorf("data directory: %w", err)
	}
	return lock, nil
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
	if err := errors.Join(j.log.file.Close(), j.mark.close(), j.lock.Close()); err != nil {
		return fmt.Errorf("close journal: %w", err)
	}
	return nil
}

// run carries requests out until the journal is closed and none is left.
func (j *Journal) run() {
	defer close(j.done)
	defer j.finish()
	for {
		batch := j.next()
		if len(batch) == 0 {
			return
		}
		switch {
		case batch[0].loaded != nil:
			batch[0].loaded(j.load())
			continue
		case batch[0].compacted != nil:
			j.endCompaction(batch[0].compacted)
			continue
		}
		err := j.commit(batch)
		if err != nil {
			err = records.Errorf(records.ClassUnavailable, "write journal %s: %w", j.path, err)
		}
		for _, r := range batch {
			r.written(err)
		}
		if j.compaction == nil && !j.log.broken && j.log.at.offset >= j.log.compactAt {
			j.beginCompaction()
		}
	}
}

// commit makes a batch of changes durable.
func (j *Journal) commit(batch []request) error {
	if j.log.broken {
		if err := j.rewrite(); err != nil {
			return err
		}
	}
	j.log.begin(max(j.log.at.position, j.mark.position()) + 1)
	for _, r := range batch {
		j.log.payload = appendChanges(j.log.payload, r.change)
	}
	if len(j.log.payload) == positionBytes {
		return nil // a batch of nothing is the mark of a close
	}
	if err := j.log.append(); err != nil {
		return err
	}
	j.wrote = true
	j.mark.advance(j.log.at.position)
	return nil
}

// finish leaves an empty batch behind those of this life. A batch that another one
// follows was durable, so whatever is missing of it is known to be damage. All that was
// answered is durable already; an empty batch that may not be is taken away again, for
// the next life would write behind it.
func (j *Journal) finish() {
	j.dropCompaction()
	if !j.wrote || j.log.broken {
		return
	}
	j.log.begin(j.log.at.position)
	if j.log.append() != nil && j.log.at.offset < j.log.size {
		_, _ = j.log.file.WriteAt(zeroSector[:], j.log.at.offset)
	}
}

// next waits for a load, or news, or for all the changes that come before one.
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
	if j.pending[0].written != nil {
		for n < len(j.pending) && n < ChangesPerCommit && j.pending[n].written != nil {
			n++
		}
	}
	batch := append([]request(nil), j.pending[:n]...)
	rest := append(j.pending[:0], j.pending[n:]...)
	clear(j.pending[len(rest):])
	j.pending = rest
	return batch
}

func (j *Journal) load() (nodes.JournalContent, error) {
	all, err := j.log.read()
	var content nodes.JournalContent
	if err == nil {
		content, err = all.content()
	}
	if err != nil {
		return nodes.JournalContent{}, fmt.Errorf("load journal %s: %w", j.path, err)
	}
	position, marked := j.log.at.position, j.mark.position()
	if position > marked {
		j.mark.advance(position) // the first load of a boot
	}
	// One that an older version has written does not say how far it has come.
	content.Reverted = position > 0 && position < marked
	return content, nil
}
