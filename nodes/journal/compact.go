package journal

import "fmt"

const (
	// compactBatch is how large the batches of a new file are.
	compactBatch = 64 << 10
	// lagMax is how much may be written while another file is made and still be carried
	// over at once, while writes wait.
	lagMax = 256 << 10
	// lagRounds bounds how often what was written meanwhile is carried over beside writes.
	lagRounds = 8
)

// compaction is another file in the making, while the old one is still written.
type compaction struct {
	fresh *log
	upTo  place
	round int
	err   error
	done  chan struct{}
}

// compact begins a file with what the log holds at a place. It may run beside writes
// of the log; it does not seal the file. Nothing of a value is kept in memory: the old
// file is read twice, first for which change of a key is the last.
func (l *log) compact(upTo place) (*log, error) {
	fresh, err := newLog(l.disk, l.head.id, l.room)
	if err != nil {
		return nil, err
	}
	if err = l.copyLive(fresh, upTo); err == nil && fresh.size-fresh.at.offset < fresh.room/2 {
		err = fresh.grow(sectorBytes)
	}
	if err != nil {
		_ = fresh.discard()
		return nil, err
	}
	return fresh, nil
}

func (l *log) copyLive(fresh *log, upTo place) error {
	last, count, meta := map[string]int{}, 0, 0
	err := l.each(l.head.start(), upTo, func(_ uint64, changes []byte) error {
		return eachChange(changes, func(kind byte, key, _ []byte) error {
			count++
			switch kind {
			case changeMeta:
				meta = count
			case changePut:
				last[string(key)] = count
			case changeDelete:
				delete(last, string(key))
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	fresh.begin(upTo.position)
	count = 0
	err = l.each(l.head.start(), upTo, func(_ uint64, changes []byte) error {
		return eachChange(changes, func(kind byte, key, value []byte) error {
			count++
			if kind == changeMeta && count == meta || kind == changePut && count == last[string(key)] {
				return fresh.carry(upTo.position, kind, key, value)
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	return fresh.write()
}

// carry adds a change to the batch that was begun, and begins another when that is
// large.
func (l *log) carry(position uint64, kind byte, key, value []byte) error {
	l.payload = appendChange(l.payload, kind, key, value)
	if len(l.payload) < compactBatch {
		return nil
	}
	if err := l.write(); err != nil {
		return err
	}
	l.begin(position)
	return nil
}

// catchUp carries over what was written between two places, batch by batch.
func (l *log) catchUp(fresh *log, from, to place) error {
	return l.each(from, to, func(position uint64, changes []byte) error {
		fresh.begin(position)
		err := eachChange(changes, func(kind byte, key, value []byte) error {
			if kind != changeSize {
				fresh.payload = appendChange(fresh.payload, kind, key, value)
			}
			return nil
		})
		if err != nil {
			return err
		}
		return fresh.write()
	})
}

// rewrite makes another file of what is durable in the log and takes its place.
func (j *Journal) rewrite() error {
	j.dropCompaction()
	fresh, err := j.log.compact(j.log.at)
	if err != nil {
		return fmt.Errorf("make its file anew: %w", err)
	}
	return j.replace(fresh)
}

// replace seals a file and goes on with it. If it has got its name it is the journal,
// though perhaps a broken one.
func (j *Journal) replace(fresh *log) error {
	err := fresh.seal(j.log.at.position)
	if fresh.named {
		old := j.log
		j.log = fresh
		_ = old.file.Close()
	}
	return err
}

// beginCompaction starts to make another file beside the writes.
func (j *Journal) beginCompaction() {
	c := &compaction{upTo: j.log.at, done: make(chan struct{})}
	j.compaction = c
	old := j.log
	go func() {
		defer j.compacted(c)
		c.fresh, c.err = old.compact(c.upTo)
	}()
}

// compacted says that the goroutine of a compaction has done its part.
func (j *Journal) compacted(c *compaction) {
	j.mu.Lock()
	j.pending = append(j.pending, request{compacted: c})
	j.wake.Signal()
	j.mu.Unlock()
	close(c.done)
}

// endCompaction takes over what was made, or lets it catch up once more if much was
// written meanwhile, or gives it up: if little would be won, or it failed.
func (j *Journal) endCompaction(c *compaction) {
	if j.compaction != c {
		return // given up
	}
	old, to := j.log, j.log.at
	if c.err == nil && c.round == 0 && c.fresh.at.offset > to.offset/2 {
		_ = c.fresh.discard()
		j.compaction = nil
		old.compactAt = to.offset + max(old.room/2, c.fresh.at.offset)
		return
	}
	if c.err == nil && to.offset-c.upTo.offset > lagMax && c.round < lagRounds {
		next := &compaction{fresh: c.fresh, upTo: to, round: c.round + 1, done: make(chan struct{})}
		j.compaction = next
		go func() {
			defer j.compacted(next)
			if next.err = old.catchUp(next.fresh, c.upTo, to); next.err == nil {
				next.err = next.fresh.file.Sync()
			}
		}()
		return
	}
	err := c.err
	if err == nil {
		err = old.catchUp(c.fresh, c.upTo, to)
	}
	if err != nil {
		if c.fresh != nil {
			_ = c.fresh.discard()
		}
	} else {
		err = j.replace(c.fresh)
	}
	j.compaction = nil
	if err != nil && j.log == old {
		old.compactAt = to.offset + old.room/2 // the old file is good; later again
	}
}

// dropCompaction waits for a compaction and gives it up.
func (j *Journal) dropCompaction() {
	c := j.compaction
	if c == nil {
		return
	}
	<-c.done
	if c.fresh != nil {
		_ = c.fresh.discard()
	}
	j.compaction = nil
}
