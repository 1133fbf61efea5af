package journal

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"sync"
	"testing"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
)

// errDead is what everything answers behind the crash of a memoryDisk.
var errDead = errors.New("the machine is off")

// memoryDisk is a disk that can lose its power, fail and be full. What is not synced
// may be there after a crash or not, sector by sector.
type memoryDisk struct {
	mu            sync.Mutex
	names, synced map[string]*memoryFile
	random        *rand.Rand
	// calls counts what changes the disk; from dieAt on it is dead, unless that is 0.
	calls, dieAt int
	// syncs counts those of data, failSyncs makes the next ones fail.
	syncs, writes, failSyncs int
	// failWrites lets the next writes end in their middle.
	failWrites int
	// full refuses every byte behind what a file has.
	full bool
}

type memoryFile struct {
	disk         *memoryDisk
	data, synced []byte
	// lost are the sectors of which a sync has failed: the kernel takes them for clean,
	// and a later sync leaves them out, until they are written again.
	lost map[int]bool
}

func newMemoryDisk(seed uint64) *memoryDisk {
	return &memoryDisk{names: map[string]*memoryFile{}, synced: map[string]*memoryFile{}, random: rand.New(rand.NewPCG(seed, 1))}
}

// step counts a call and tells whether it is the last, and whether it comes too late.
func (d *memoryDisk) step() (last bool, err error) {
	d.calls++
	if d.dieAt > 0 && d.calls >= d.dieAt {
		return d.calls == d.dieAt, errDead
	}
	return false, nil
}

// crash is the disk as the next start finds it.
func (d *memoryDisk) crash() *memoryDisk {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := newMemoryDisk(d.random.Uint64())
	names := d.synced
	if d.random.IntN(2) == 0 {
		names = d.names
	}
	for _, name := range []string{FileName, freshName} {
		f := names[name]
		if f == nil {
			continue
		}
		size := len(f.synced)
		if d.random.IntN(2) == 0 {
			size = len(f.data)
		}
		data := make([]byte, size)
		copy(data, f.synced)
		for at := 0; at < min(size, len(f.data)); at += sectorBytes {
			if d.random.IntN(2) == 0 {
				copy(data[at:min(at+sectorBytes, size)], f.data[at:])
			}
		}
		kept := &memoryFile{disk: next, data: data, synced: bytes.Clone(data)}
		next.names[name], next.synced[name] = kept, kept
	}
	return next
}

func (d *memoryDisk) open(name string) (file, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.names[name]; f != nil {
		return f, nil
	}
	return nil, fs.ErrNotExist
}

func (d *memoryDisk) create(name string) (file, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.step(); err != nil {
		return nil, err
	}
	f := &memoryFile{disk: d}
	d.names[name] = f
	return f, nil
}

func (d *memoryDisk) rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	last, err := d.step()
	if err == nil || last && d.random.IntN(2) == 0 {
		d.names[to] = d.names[from]
		delete(d.names, from)
	}
	return err
}

func (d *memoryDisk) remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.step(); err != nil {
		return err
	}
	delete(d.names, name)
	return nil
}

func (d *memoryDisk) sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.step(); err != nil {
		return err
	}
	d.synced = map[string]*memoryFile{}
	for name, f := range d.names {
		d.synced[name] = f
	}
	return nil
}

func (f *memoryFile) ReadAt(p []byte, at int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return bytes.NewReader(f.data).ReadAt(p, at)
}

func (f *memoryFile) WriteAt(p []byte, at int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.disk.writes++
	last, err := f.disk.step()
	if last {
		p = p[:f.disk.random.IntN(len(p)+1)] // cut at any byte
	} else if err != nil {
		return 0, err
	}
	if grow := int(at) + len(p) - len(f.data); grow > 0 {
		if f.disk.full {
			return 0, io.ErrShortWrite
		}
		f.data = append(f.data, make([]byte, grow)...)
	}
	if f.disk.failWrites > 0 {
		f.disk.failWrites--
		p, err = p[:len(p)/2], io.ErrShortWrite
	}
	for sector := int(at) / sectorBytes; sector*sectorBytes < int(at)+len(p); sector++ {
		delete(f.lost, sector)
	}
	return copy(f.data[at:], p), err
}

func (f *memoryFile) Truncate(size int64) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if _, err := f.disk.step(); err != nil {
		return err
	}
	if int(size) > len(f.data) && f.disk.full {
		return io.ErrShortWrite
	}
	f.data = append(f.data, make([]byte, max(0, int(size)-len(f.data)))...)[:size]
	return nil
}

func (f *memoryFile) Sync() error { return f.Datasync() }

func (f *memoryFile) Datasync() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if _, err := f.disk.step(); err != nil {
		return err
	}
	f.disk.syncs++
	if f.disk.failSyncs > 0 {
		f.disk.failSyncs--
		f.lost = map[int]bool{}
		for sector := range f.sectors() {
			f.lost[sector] = !bytes.Equal(part(f.data, sector), part(f.synced, sector))
		}
		return io.ErrUnexpectedEOF
	}
	synced := make([]byte, len(f.data))
	for sector := range f.sectors() {
		from := f.data
		if f.lost[sector] {
			from = f.synced
		}
		copy(part(synced, sector), part(from, sector))
	}
	f.synced = synced
	return nil
}

func (f *memoryFile) sectors() int { return (len(f.data) + sectorBytes - 1) / sectorBytes }

// part is a sector of what there is of it.
func part(data []byte, sector int) []byte {
	begin := min(sector*sectorBytes, len(data))
	return data[begin:min(begin+sectorBytes, len(data))]
}

// revive is the disk as the next daemon finds it, when the machine has gone on.
func (d *memoryDisk) revive() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dieAt = 0
}

// lose is the disk after a loss of power that has kept nothing but what was synced.
func (d *memoryDisk) lose() *memoryDisk {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := newMemoryDisk(1)
	for name, f := range d.synced {
		kept := &memoryFile{disk: next, data: bytes.Clone(f.synced), synced: bytes.Clone(f.synced)}
		next.names[name], next.synced[name] = kept, kept
	}
	return next
}

func (f *memoryFile) Size() (int64, error) { return int64(len(f.data)), nil }
func (f *memoryFile) Close() error         { return nil }

// onDisk opens a journal of a memoryDisk and starts it.
func onDisk(d disk, marks string, room int64) (*Journal, error) {
	j, err := open(d, FileName, marks, room)
	if err != nil {
		return nil, err
	}
	go j.run()
	return j, nil
}

// try writes a change and returns the answer.
func try(j *Journal, change nodes.JournalChange) error {
	done := make(chan error, 1)
	j.Write(change, func(err error) { done <- err })
	return <-done
}

func puts(runs ...string) (change nodes.JournalChange) {
	for _, run := range runs {
		change.Puts = append(change.Puts, entry(run, 1, 1))
	}
	return change
}

// smallDisk holds a journal of some batches, the last of three sectors. Of what it
// holds before the last is the first result.
func smallDisk(t testing.TB) (d *memoryDisk, before, all nodes.JournalContent) {
	t.Helper()
	d = newMemoryDisk(1)
	j, err := onDisk(d, "", 8192)
	must(t, err)
	must(t, try(j, nodes.JournalChange{Meta: &recordv1.JournalMeta{Node: "n1", Uuid: "u", Generation: 3}, Puts: puts("r.a.a", "r.a.b").Puts}))
	must(t, try(j, nodes.JournalChange{Puts: puts("r.a.c").Puts, Deletes: []nodes.PlacementKey{{Run: "r.a.a", Attempt: 1, Placement: 1}}}))
	before = load(t, j)
	must(t, try(j, puts(longRun("x"), longRun("y"))))
	all = load(t, j)
	j.wrote = false // no batch behind the last
	closeOnDisk(t, j)
	return d, before, all
}

func longRun(name string) string { return "r.a." + string(bytes.Repeat([]byte(name), 300)) }

// closeOnDisk ends a journal that has no directory to let go of.
func closeOnDisk(t testing.TB, j *Journal) {
	t.Helper()
	j.mu.Lock()
	closed := j.closed
	j.closed = true
	j.wake.Signal()
	j.mu.Unlock()
	<-j.done
	if !closed {
		must(t, j.mark.close())
	}
}
