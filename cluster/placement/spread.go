package placement

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// Spread returns candidates in the order in which they are to be asked on behalf of
// a key: higher scores first, and among equal ones in an order of the key's own, so
// that many keys share the nodes evenly. of names a candidate's node and score. The
// given order has no influence, and the given slice is not changed.
func Spread[C any](key string, candidates []C, of func(C) (node string, score int64)) []C {
	type weighed struct {
		candidate C
		node      string
		score     int64
		weight    uint64
	}
	hash := xxhash.Sum64String(key)
	all := make([]weighed, len(candidates))
	for i, c := range candidates {
		node, score := of(c)
		all[i] = weighed{c, node, score, mix(xxhash.Sum64String(node), hash)}
	}
	slices.SortFunc(all, func(a, b weighed) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(b.weight, a.weight), strings.Compare(a.node, b.node))
	})
	spread := make([]C, len(all))
	for i, w := range all {
		spread[i] = w.candidate
	}
	return spread
}
