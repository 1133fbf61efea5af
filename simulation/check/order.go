package check

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"github.com/errand-run/errand/cluster/records"
)

// span is one operation on a run: what was asked, what was answered, and when.
type span struct {
	in  operation
	out outcome
	// call and end are in true time; end is never for one whose answer nobody knows.
	call, end time.Duration
}

// never is when a call ends that was not answered.
const never = time.Duration(1<<63 - 1)

// ordered tells whether there is an order of the operations, of two that did not
// overlap the earlier being first, in which each answer is possible. It is the search
// of Wing and Gong, with what was tried remembered as Lowe does.
func ordered(spans []span) bool {
	spans = slices.Clone(spans)
	slices.SortStableFunc(spans, func(a, b span) int { return cmp.Compare(a.call, b.call) })
	o := ordering{spans: spans, done: make([]uint64, (len(spans)+63)/64), tried: map[string]bool{}}
	for _, s := range spans {
		if s.out.known {
			o.left++
		}
	}
	return o.from(absent)
}

// ordering is a search that is under way.
type ordering struct {
	// spans are in the order of their calls; done is a bit for each that has its place,
	// and left counts those without one whose answer is known. The others may have been
	// done after all that anybody saw, which every state allows.
	spans []span
	done  []uint64
	left  int
	tried map[string]bool
}

// from tells whether what is left can follow in a state.
func (o *ordering) from(s state) bool {
	undo := o.takeAnswers(s)
	if o.left == 0 {
		return true
	}
	if key := o.key(s); !o.tried[key] {
		o.tried[key] = true
		for _, i := range o.choices(s) {
			_, next := step(s, o.spans[i].in, o.spans[i].out)
			o.place(i)
			if o.from(next) {
				return true
			}
			o.take(i)
		}
	}
	for _, i := range undo {
		o.take(i)
	}
	return false
}

// takeAnswers gives their place to all operations that may come now and change
// nothing, neither now nor later: there is none better. It returns which they were.
func (o *ordering) takeAnswers(s state) (placed []int) {
	for again := true; again; {
		again = false
		for i := range o.candidates() {
			if ok, _ := step(s, o.spans[i].in, o.spans[i].out); ok && o.spans[i].out.known && !o.spans[i].changes() {
				o.place(i)
				placed = append(placed, i)
				again = true
			}
		}
	}
	return placed
}

// changes tells whether the operation may be one that changes a state. One that changes
// nothing now may be needed later, where it does: a second submit, once what the first
// one made was deleted and forgotten.
func (s span) changes() bool {
	switch s.in.verb {
	case VerbGet, VerbCancel:
		return false
	case VerbSubmit, VerbDelete:
		return !s.out.refused || s.in.verb == VerbSubmit && s.out.class == records.ClassInvalid
	default:
		return true
	}
}

// choices are the operations that may come next, those first that change nothing. Of
// several that ask and answer the same, the one that must come first stands for all.
func (o *ordering) choices(s state) []int {
	var still, moving []int
	for i := range o.candidates() {
		ok, next := step(s, o.spans[i].in, o.spans[i].out)
		if !ok || next == s && !o.spans[i].out.known {
			continue // one whose answer nobody knows may as well come last
		}
		list := &moving
		if next == s {
			list = &still
		}
		if j := slices.IndexFunc(*list, func(j int) bool { return o.spans[j].in == o.spans[i].in && o.spans[j].out == o.spans[i].out }); j < 0 {
			*list = append(*list, i)
		} else if o.spans[i].end < o.spans[(*list)[j]].end {
			(*list)[j] = i
		}
	}
	return append(still, moving...)
}

// candidates are the operations that began before all others had ended.
func (o *ordering) candidates() func(yield func(int) bool) {
	first := never
	for i, s := range o.spans {
		if !o.placed(i) {
			first = min(first, s.end)
		}
	}
	return func(yield func(int) bool) {
		for i, s := range o.spans {
			if s.call > first {
				return
			}
			if !o.placed(i) && !yield(i) {
				return
			}
		}
	}
}

func (o *ordering) placed(i int) bool { return o.done[i/64]&(1<<(i%64)) != 0 }

func (o *ordering) place(i int) { o.mark(i, -1) }

func (o *ordering) take(i int) { o.mark(i, 1) }

func (o *ordering) mark(i, left int) {
	o.done[i/64] ^= 1 << (i % 64)
	if o.spans[i].out.known {
		o.left += left
	}
}

// key names what is done and the state in which it ended.
func (o *ordering) key(s state) string {
	key := make([]byte, 0, 8*len(o.done)+1)
	for _, word := range o.done {
		key = binary.LittleEndian.AppendUint64(key, word)
	}
	return string(append(key, byte(s)))
}
