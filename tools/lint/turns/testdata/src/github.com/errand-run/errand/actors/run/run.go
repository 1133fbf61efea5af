package run

import (
	"maps"
	"math/rand"
	"slices"
	"sync"
	"time"
)

type machine struct {
	mu    sync.Mutex // want "no sync.Mutex in a turn: a turn has its state to itself"
	c     chan int
	names map[string]int
	now   time.Time
}

func (m *machine) concurrent() {
	go m.concurrent() // want "no goroutine in a turn"
	m.c <- 1          // want "no channel in a turn"
	<-m.c             // want "no channel in a turn"
	select {          // want "no channel in a turn"
	default:
	}
}

func (m *machine) clocks() time.Duration {
	_ = rand.Int()           // want "no rand.Int in a turn: draw from the Rand port"
	time.Sleep(time.Second)  // want "no time.Sleep in a turn: take now from Step"
	_ = m.now.After(m.now)   // a method, not the function
	return time.Since(m.now) // want "no time.Since in a turn"
}

func send(string) {}

func (m *machine) shows(out []string) []string {
	for name := range m.names { // want "the order of a map is random"
		send(name)
	}
	for name := range m.names { // want "the order of a map is random"
		out = append(out, name)
	}
	last := ""
	for name := range m.names { // want "the order of a map is random"
		last = name
	}
	other := map[string]string{}
	for name := range m.names { // want "the order of a map is random"
		other["last"] = name
	}
	for name := range m.names { // want "the order of a map is random"
		return append(out, name)
	}
	//errand:unordered // want "say why the order does not matter"
	for name := range m.names { // want "the order of a map is random"
		send(name)
	}
	for name := range maps.Keys(m.names) { // want "the order of a map is random"
		send(name)
	}
	return append(out, last)
}

func (m *machine) firstFound() (found int) {
	for _, n := range m.names { // want "the order of a map is random"
		if n == 1 {
			return 1
		}
		if n == 2 {
			return 2
		}
	}
	for _, n := range m.names { // want "the order of a map is random"
		found++
		if n == 1 {
			return 1
		}
	}
	return found
}

func (m *machine) any() bool {
	for _, n := range m.names {
		if n == 1 {
			return true
		}
	}
	return false
}

func (m *machine) doesNotShow() []string {
	var names []string
	total, count := 0, 0
	copied := map[string]int{}
	for name, n := range m.names {
		if n == 0 {
			continue
		}
		names = append(names, name)
		copied[name] = n
		total += n
		count++
		delete(m.names, name)
	}
	slices.Sort(names)
	for _, name := range slices.Sorted(maps.Keys(m.names)) {
		send(name)
	}
	//errand:unordered each is told once, in whatever order
	for name := range m.names {
		send(name)
	}
	for name := range m.names { //errand:unordered likewise
		send(name)
	}
	for _, name := range names {
		send(name)
	}
	return names
}
