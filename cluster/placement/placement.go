package placement

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
)

// Buckets is how many buckets the actors of all kinds are hashed to.
const Buckets = 1024

// BucketOf returns the bucket of an actor, from 0 to Buckets-1.
func BucketOf(kind, identity string) int {
	var h xxhash.Digest
	h.Reset()
	_, _ = h.WriteString(kind)
	_, _ = h.Write([]byte{0}) // no kind has it, so that no two actors run together
	_, _ = h.WriteString(identity)
	return int(h.Sum64() % Buckets)
}

// View ranks the nodes of one presence view. Its methods may be called from any
// goroutine. What they return is shared and must not be changed.
type View struct {
	nodes []string
	// hashes are those of the nodes' names.
	hashes []uint64
	// ranks are made when they are first asked for.
	ranks [Buckets]atomic.Pointer[[]string]
}

// NewView makes the view of some nodes, in any order.
func NewView(nodes []string) *View {
	v := &View{nodes: slices.Clone(nodes)}
	slices.Sort(v.nodes)
	v.nodes = slices.Compact(v.nodes)
	v.hashes = make([]uint64, len(v.nodes))
	for i, node := range v.nodes {
		v.hashes[i] = xxhash.Sum64String(node)
	}
	return v
}

// Nodes returns the nodes of the view, sorted.
func (v *View) Nodes() []string { return v.nodes }

// Ranks returns all nodes in the order in which an actor belongs to them.
func (v *View) Ranks(kind, identity string) []string { return v.OfBucket(BucketOf(kind, identity)) }

// Rank returns the place of a node in the ranks of an actor, from 1; 0 when the
// node is not in the view.
func (v *View) Rank(node, kind, identity string) int {
	return slices.Index(v.Ranks(kind, identity), node) + 1
}

// First returns the node that an actor belongs to, "" in an empty view.
func (v *View) First(kind, identity string) string {
	if ranks := v.Ranks(kind, identity); len(ranks) > 0 {
		return ranks[0]
	}
	return ""
}

// OfBucket returns all nodes in the order in which a bucket belongs to them.
func (v *View) OfBucket(bucket int) []string {
	if ranks := v.ranks[bucket].Load(); ranks != nil {
		return *ranks
	}
	ranks := v.rank(bucket)
	v.ranks[bucket].Store(&ranks)
	return ranks
}

func (v *View) rank(bucket int) []string {
	places := make([]int, len(v.nodes))
	weights := make([]uint64, len(v.nodes))
	for i := range places {
		places[i], weights[i] = i, mix(v.hashes[i], uint64(bucket)) //nolint:gosec // from 0 to Buckets-1
	}
	// The names are sorted, so a stable sort settles equal weights by name.
	slices.SortStableFunc(places, func(a, b int) int { return cmp.Compare(weights[b], weights[a]) })
	ranks := make([]string, len(places))
	for i, place := range places {
		ranks[i] = v.nodes[place]
	}
	return ranks
}

// mix is the weight of a node for a bucket, or for anything else that is spread
// over nodes.
func mix(node, what uint64) uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], node)
	binary.LittleEndian.PutUint64(b[8:], what)
	return xxhash.Sum64(b[:])
}

// Tracker keeps the View of a presence view that changes. Its methods may be called
// from any goroutine.
type Tracker struct {
	alive func() []string

	mu   sync.Mutex
	seen []string
	view *View
}

// NewTracker tracks what alive returns. It is called each time somebody looks; it
// does not block.
func NewTracker(alive func() []string) *Tracker { return &Tracker{alive: alive} }

// View returns the view of this moment. It is the same View as long as nobody has
// seen the nodes change; nodes that change and change back in between two looks of
// one caller give that caller another View if anybody looked meanwhile.
func (t *Tracker) View() *View {
	t.mu.Lock()
	defer t.mu.Unlock()
	alive := t.alive()
	if t.view == nil || !slices.Equal(alive, t.seen) {
		t.seen, t.view = slices.Clone(alive), NewView(alive)
	}
	return t.view
}
