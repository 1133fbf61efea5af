package workers_test

import (
	"runtime"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/errand-run/errand/cluster/workers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// goroutine names the one that runs.
func goroutine() string {
	head := make([]byte, 64)
	head = head[:runtime.Stack(head, false)]
	for i, c := range head {
		if c == '[' {
			return string(head[:i])
		}
	}
	return string(head)
}

// settle runs functions that wait for each other, so that each has a goroutine, and
// returns those.
func settle(w *workers.Workers, n int) map[string]bool {
	var mu sync.Mutex
	names := map[string]bool{}
	var together, done sync.WaitGroup
	together.Add(n)
	done.Add(n)
	for range n {
		w.Go(func() {
			together.Done()
			together.Wait()
			mu.Lock()
			defer mu.Unlock()
			names[goroutine()] = true
			done.Done()
		})
	}
	done.Wait()
	return names
}

func TestNothingWaitsForAFreeWorker(t *testing.T) {
	w := workers.New(2)
	if names := settle(w, 100); len(names) != 100 {
		t.Errorf("100 functions that wait for each other ran on %d goroutines", len(names))
	}
	w.Stop()
	w.Wait()
}

func TestAWorkerIsUsedAgainAndNoMoreThanToldAreKept(t *testing.T) {
	const kept = 3
	w := workers.New(kept)
	before := runtime.NumGoroutine()
	first := settle(w, 50)
	for runtime.NumGoroutine() > before+kept {
		runtime.Gosched()
	}
	again := 0
	for name := range settle(w, 50) {
		if first[name] {
			again++
		}
	}
	if again != kept {
		t.Errorf("%d of the first goroutines were used again, want %d", again, kept)
	}
	w.Stop()
	w.Wait()
}

func TestAfterStopFunctionsRunAndNobodyIsKept(t *testing.T) {
	w := workers.New(8)
	settle(w, 4)
	w.Stop()
	if names := settle(w, 4); len(names) != 4 {
		t.Errorf("%d goroutines", len(names))
	}
	w.Stop()
	w.Wait() // goleak sees that none is left
}

func TestManyGiveWorkWhileItIsStopped(t *testing.T) {
	w := workers.New(4)
	var givers, done sync.WaitGroup
	for range 8 {
		givers.Go(func() {
			for range 500 {
				done.Add(1)
				w.Go(done.Done)
			}
		})
	}
	w.Stop()
	givers.Wait()
	done.Wait()
	w.Wait()
}

func BenchmarkDeep(b *testing.B) {
	for name, run := range map[string]func(func()){
		"a goroutine each": func(do func()) { go do() },
		"workers":          workers.New(16).Go,
	} {
		b.Run(name, func(b *testing.B) {
			done := make(chan struct{})
			for b.Loop() {
				run(func() {
					deep(40)
					done <- struct{}{}
				})
				<-done
			}
		})
	}
}

// deep uses about 10 KiB of stack.
func deep(n int) byte {
	var frame [256]byte
	frame[n] = byte(n)
	if n > 0 {
		frame[0] = deep(n - 1)
	}
	return frame[n/2]
}
