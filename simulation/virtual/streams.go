package virtual

import (
	"hash/fnv"
	"math/rand/v2"
)

// Streams makes the random streams of a world out of its seed. Each has a name, and
// what is drawn from one moves no other.
type Streams struct{ Seed uint64 }

// Of returns the stream of a name, from its beginning.
func (s Streams) Of(name string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))                    // a hash does not fail
	return rand.New(rand.NewPCG(s.Seed, h.Sum64())) //nolint:gosec // reproducible on purpose
}
