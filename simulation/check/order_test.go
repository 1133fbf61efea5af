package check

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"pgregory.net/rapid"

	"github.com/errand-run/errand/cluster/records"
)

// drawSpan draws an operation of a short time, so that many overlap.
func drawSpan(t *rapid.T) span {
	verb := rapid.SampledFrom([]string{VerbSubmit, VerbCancel, VerbDelete, VerbGet, verbEnd, verbForget}).Draw(t, "verb")
	begin := time.Duration(rapid.IntRange(0, 20).Draw(t, "call"))
	if verb == verbEnd || verb == verbForget {
		return span{in: operation{verb: verb}, out: outcome{known: true}, call: begin, end: begin}
	}
	s := span{in: operation{verb: verb}, call: begin, end: never}
	if rapid.IntRange(0, 3).Draw(t, "unanswered") == 0 {
		return s
	}
	s.end = begin + time.Duration(rapid.IntRange(0, 6).Draw(t, "takes"))
	s.out = outcome{known: true, refused: rapid.Bool().Draw(t, "refused")}
	switch {
	case s.out.refused:
		s.out.class = rapid.SampledFrom([]records.Class{records.ClassNotFound, records.ClassConflict, records.ClassInvalid, records.ClassUnavailable}).Draw(t, "class")
	case verb == VerbGet:
		s.out.exists = rapid.Bool().Draw(t, "exists")
		s.out.ended = s.out.exists && rapid.Bool().Draw(t, "ended")
	}
	return s
}

// porcupine searches in a goroutine of its own, which a world must not start; here it
// says what is true.
func porcupineOrders(spans []span) bool {
	operations := make([]porcupine.Operation, len(spans))
	for i, s := range spans {
		operations[i] = porcupine.Operation{ClientId: i, Input: s.in, Output: s.out, Call: int64(s.call), Return: int64(s.end)}
	}
	return porcupine.CheckOperations(porcupine.Model{
		Init: func() any { return absent },
		Step: func(s, in, out any) (bool, any) { return step(s.(state), in.(operation), out.(outcome)) },
	}, operations)
}

func TestOrderedAgreesWithPorcupine(t *testing.T) {
	var possible, impossible int
	rapid.Check(t, func(t *rapid.T) {
		spans := rapid.SliceOfN(rapid.Custom(drawSpan), 0, 12).Draw(t, "spans")
		got := ordered(spans)
		if want := porcupineOrders(spans); got != want {
			t.Fatalf("ordered is %v and porcupine says %v", got, want)
		}
		if got {
			possible++
		} else {
			impossible++
		}
	})
	if possible == 0 || impossible == 0 {
		t.Errorf("%d histories had an order and %d had none", possible, impossible)
	}
}

// What changes nothing where it may first come can be what is needed later.
func TestOrderedFindsAnOrderInWhichACallComesLater(t *testing.T) {
	done := func(verb string) span { return span{in: operation{verb: verb}, out: outcome{known: true}} }
	unanswered := func(verb string) span { return span{in: operation{verb: verb}, end: never} }
	for name, spans := range map[string][]span{
		"the second submit after the first run is forgotten": {
			done(VerbSubmit), done(VerbSubmit), done(verbEnd), done(verbEnd), done(verbForget), unanswered(VerbDelete),
		},
		"the second delete after the second run has ended": {
			done(VerbSubmit), done(verbEnd), done(VerbDelete), done(VerbDelete), done(verbForget), done(VerbSubmit), done(verbEnd), done(verbForget),
		},
	} {
		t.Run(name, func(t *testing.T) {
			if !porcupineOrders(spans) || !ordered(spans) {
				t.Errorf("porcupine finds an order: %v, ordered: %v", porcupineOrders(spans), ordered(spans))
			}
		})
	}
}

// Many clients who are told the same must not make it grow either, where there is none.
func TestOrderedIsQuickWithManyCallsThatAreToldTheSame(t *testing.T) {
	var spans []span
	for i := range 200 {
		spans = append(spans, span{in: operation{verb: []string{VerbSubmit, VerbDelete}[i%2]}, out: outcome{known: true}, call: time.Duration(i % 3), end: 400 + time.Duration(i)})
	}
	spans = append(spans, span{in: operation{verb: verbEnd}, out: outcome{known: true}, call: 300, end: 300})
	if !ordered(spans) {
		t.Error("an order exists and was not found")
	}
	if ordered(append(spans, span{in: operation{verb: VerbGet}, out: outcome{known: true, exists: true}, call: 700, end: 701})) {
		t.Error("an order was found and there is none: it has ended, and was deleted")
	}
}

// Calls that nobody answers must not make the search grow without bound.
func TestOrderedIsQuickWithManyUnansweredCalls(t *testing.T) {
	var spans []span
	for i := range 300 {
		verb := []string{VerbSubmit, VerbCancel, VerbDelete, VerbGet}[i%4]
		spans = append(spans, span{in: operation{verb: verb}, call: time.Duration(i), end: never})
	}
	found := span{in: operation{verb: VerbGet}, out: outcome{known: true, exists: true}, call: 400, end: 401}
	lost := span{in: operation{verb: VerbCancel}, out: outcome{known: true, refused: true, class: records.ClassConflict}, call: 500, end: 501}
	if !ordered(append(spans, found)) || !ordered(append(spans, found, lost)) {
		t.Error("an order exists and was not found")
	}
	// Nothing has ended it: no order exists, and all of them would have to be tried.
	ended := span{in: operation{verb: VerbGet}, out: outcome{known: true, exists: true, ended: true}, call: 600, end: 601}
	if ordered(append(spans, found, ended)) {
		t.Error("an order was found and there is none")
	}
}
