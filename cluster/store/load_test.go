package store

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/errand-run/errand/cluster/records"
)

// heavy is what a busy node does to its store: long follows of folders, short ones
// of the keys in them that come and go, and transactions that change those keys.
type heavy struct {
	folders      int
	watchers     int
	each         int
	transactions int
}

// folded is a follow of a folder and what it has heard.
type folded struct {
	mu      sync.Mutex
	mirror  records.Mirror
	resets  int
	changed chan struct{}
	stop    func()
}

func foldFolder(t *testing.T, s *Store, prefix string) *folded {
	t.Helper()
	f := &folded{changed: make(chan struct{}, 1)}
	f.stop = s.Follow(prefix, func(batch records.Batch) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if batch.Reset {
			f.resets++
		}
		f.mirror.Apply(batch)
		select {
		case f.changed <- struct{}{}:
		default:
		}
	})
	t.Cleanup(f.stop)
	return f
}

// differs says what the mirror has not as the store has it.
func (f *folded) differs(stored []records.KV) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mirror.Len() != len(stored) {
		return fmt.Sprintf("%d keys, want %d", f.mirror.Len(), len(stored))
	}
	for _, kv := range stored {
		if heard, _ := f.mirror.Get(kv.Key); heard.Mod != kv.Mod {
			return fmt.Sprintf("%s at %d, want %d", kv.Key, heard.Mod, kv.Mod)
		}
	}
	return ""
}

func (f *folded) began() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.resets
}

func (h heavy) key(i int) string {
	return fmt.Sprintf("p/%02d/%04d", i%h.folders, i/h.folders%50)
}

// write sends all transactions, a bounded number at a time, and waits for them.
func (h heavy) write(t *testing.T, s *Store) {
	slots := make(chan struct{}, 256)
	var failed atomic.Int64
	for i := range h.transactions {
		slots <- struct{}{}
		s.Txn(putTxn(h.key(i), fmt.Sprint(i)), func(result records.Result) {
			if result.Err != nil && failed.Add(1) == 1 {
				t.Error(result.Err)
			}
			<-slots
		})
	}
	for range cap(slots) {
		slots <- struct{}{}
	}
}

// watch starts and stops short follows, of keys and sometimes of a folder. Every
// other one is stopped before it has heard anything. A follow that does not begin
// fails the test.
func (h heavy) watch(ctx context.Context, t *testing.T, s *Store, number int) {
	for i := range h.each {
		prefix := h.key(number*h.each + i)
		if i%5 == 0 {
			prefix = prefix[:len("p/00/")]
		}
		reset := make(chan struct{}, 1)
		stop := s.Follow(prefix, func(batch records.Batch) {
			if batch.Reset {
				select {
				case reset <- struct{}{}:
				default:
				}
			}
		})
		if i%2 == 0 {
			select {
			case <-reset:
			case <-ctx.Done():
				t.Errorf("watcher %d: follow %d has not begun", number, i)
				stop()
				return
			}
		}
		stop()
	}
}

// Follows that come and go while the keys change disturb neither each other nor
// those that stay.
func TestFollowsHearEverythingUnderLoad(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	s := openAt(t, Config{DataDir: dataDir(t), Log: zap.New(core)})
	load := heavy{folders: 64, watchers: 100, each: 50, transactions: 5000}
	var folders []*folded
	for i := range load.folders {
		folders = append(folders, foldFolder(t, s, fmt.Sprintf("p/%02d/", i)))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	began := time.Now()
	var working sync.WaitGroup
	working.Go(func() {
		load.write(t, s)
		t.Logf("%d transactions after %v", load.transactions, time.Since(began))
	})
	for number := range load.watchers {
		working.Go(func() { load.watch(ctx, t, s, number) })
	}
	working.Wait()
	t.Logf("all work done after %v", time.Since(began))

	settle, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for i, f := range folders {
		stored := do(t, s, records.Read(records.Range(fmt.Sprintf("p/%02d/", i)))).Responses[0].KVs
		for differs := f.differs(stored); differs != ""; differs = f.differs(stored) {
			select {
			case <-f.changed:
			case <-settle.Done():
				t.Fatalf("folder %d has not heard everything: %s", i, differs)
			}
		}
	}
	for i, f := range folders {
		if resets := f.began(); resets != 1 {
			t.Errorf("folder %d began %d times", i, resets)
		}
	}
	// Follows that begin again say so, too. The server below may complain of being
	// slow, and be too slow for the read that a follow begins with, which is repeated.
	for _, entry := range logs.All() {
		cause, _ := entry.ContextMap()["error"].(string)
		if entry.LoggerName == "" && !strings.HasSuffix(cause, context.DeadlineExceeded.Error()) {
			t.Errorf("%s %s %v", entry.Level, entry.Message, entry.ContextMap())
		}
	}
}
