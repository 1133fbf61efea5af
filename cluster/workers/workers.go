// Package workers keeps goroutines for the next function instead of letting them die
// with the last one. A goroutine is cheap to make, but its stack begins small and is
// copied again and again while it grows into deep calls; one that has done so before has
// the stack that it needs.
//
// Nothing waits for a free worker: where none lingers, a goroutine is made.
package workers

import "sync"

// Workers runs functions, each on a goroutine of its own. Its methods may be called from
// any goroutine.
type Workers struct {
	idleMax int

	mu sync.Mutex
	// idle are the channels of those that wait for work, the last to have worked last:
	// its stack and its caches are the warmest.
	idle    []chan func()
	stopped bool
	alive   sync.WaitGroup
}

// New keeps up to so many goroutines that have nothing to do. It starts none.
func New(idleMax int) *Workers { return &Workers{idleMax: idleMax} }

// Go runs a function on a goroutine. It does not block.
func (w *Workers) Go(do func()) {
	w.mu.Lock()
	if last := len(w.idle) - 1; last >= 0 {
		worker := w.idle[last]
		w.idle = w.idle[:last]
		w.mu.Unlock()
		worker <- do // there is room: it has nothing else
		return
	}
	w.alive.Add(1)
	w.mu.Unlock()
	go w.work(do)
}

// work does one function after the other until no more is to be kept.
func (w *Workers) work(do func()) {
	defer w.alive.Done()
	var next chan func()
	for do != nil {
		do()
		if next == nil {
			next = make(chan func(), 1)
		}
		if !w.linger(next) {
			return
		}
		do = <-next
	}
}

// linger offers a worker for the next function, unless enough do.
func (w *Workers) linger(next chan func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped || len(w.idle) >= w.idleMax {
		return false
	}
	w.idle = append(w.idle, next)
	return true
}

// Stop ends the goroutines that have nothing to do; the others end with what they do.
// Functions are still run, and none is kept any more. It does not wait.
func (w *Workers) Stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	for _, worker := range w.idle {
		worker <- nil
	}
	w.idle = nil
}

// Wait waits until no goroutine is left. It is called after Stop, and no function is
// given to Go at the same time.
func (w *Workers) Wait() { w.alive.Wait() }
