package check

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/simulation/history"
)

// together judges what clients hand to the store at one moment through one node
// (history.Contended): whatever travels together is decided, carried out and answered
// as if it had been sent alone.
//
// The keys lie in pairs, left and right; each is put only while the other is not
// there. Every transaction puts a value that nobody else puts.
type together struct {
	// there are the keys that exist, put is the revision at which a value was put, and
	// refused are those whose clients were told that they never would be.
	there   map[string]bool
	put     map[string]int64
	refused map[string]bool
	// asked is when each open call began.
	asked map[uint64]time.Duration
}

func newTogether() *together {
	return &together{there: map[string]bool{}, put: map[string]int64{}, refused: map[string]bool{}, asked: map[uint64]time.Duration{}}
}

func (*together) Guarantee() Guarantee { return Together }

func (c *together) Observe(l *Ledger, e history.Event, report func(Finding)) {
	prefix := l.config.Keys.Root + history.ContendedFolder
	switch detail := e.Detail.(type) {
	case history.Restore:
		c.restore(prefix, detail.Records)
	case history.Commit:
		for _, change := range detail.Changes {
			if strings.HasPrefix(change.Key, prefix) {
				c.commit(detail.Revision, change, report)
			}
		}
	case history.Call:
		if e.Kind == history.KindCall {
			c.asked[detail.ID] = e.At
			return
		}
		asked := c.asked[detail.ID]
		delete(c.asked, detail.ID)
		if l.RestoredSince(asked) {
			return // some may have been decided by the store of before
		}
		if told, ok := detail.Detail.([]history.Contended); ok {
			for i := range told {
				if text := c.answered(&told[i]); text != "" {
					report(Finding{Node: e.Node, Text: text})
				}
			}
		}
	}
}

// restore takes what a copy of the store holds for what is there from now on. What it
// does not hold was never put.
func (c *together) restore(prefix string, held []records.KV) {
	put := map[string]int64{}
	c.there = map[string]bool{}
	for _, kv := range held {
		if strings.HasPrefix(kv.Key, prefix) {
			c.there[kv.Key], put[string(kv.Value)] = true, kv.Mod
		}
	}
	maps.DeleteFunc(c.put, func(value string, _ int64) bool { return put[value] == 0 })
}

func (c *together) commit(revision int64, change history.Change, report func(Finding)) {
	c.there[change.Key] = change.After != nil
	if change.After == nil {
		return
	}
	value := string(change.After.Value)
	if before := c.put[value]; before != 0 {
		report(Finding{Text: fmt.Sprintf("%s was put at %d and again at %d", change.Key, before, revision)})
	}
	c.put[value] = revision
	if c.refused[value] {
		report(Finding{Text: change.Key + " was put after its client was told that it would not be"})
	}
	if other := Opposite(change.Key); other != "" && c.there[other] {
		report(Finding{Text: fmt.Sprintf("%s was put although %s is there", change.Key, other)})
	}
}

// Opposite is the other key of a pair, "" for a key that has none.
func Opposite(key string) string {
	if pair, ok := strings.CutSuffix(key, history.ContendedLeft); ok {
		return pair + history.ContendedRight
	}
	if pair, ok := strings.CutSuffix(key, history.ContendedRight); ok {
		return pair + history.ContendedLeft
	}
	return ""
}

// answered says what is wrong with an answer, nothing if it is true.
func (c *together) answered(told *history.Contended) string {
	at := c.put[told.Value]
	switch result := told.Result; {
	case result.Err != nil:
		class := records.ClassOf(result.Err)
		switch {
		case class == records.ClassOutcomeUnknown:
			return ""
		case class == records.ClassInvalid:
			return fmt.Sprintf("%s was told to be wrong: %v", told.Key, result.Err)
		case at != 0:
			return fmt.Sprintf("%s was put at %d and its client told that it was not: %v", told.Key, at, result.Err)
		}
		c.refused[told.Value] = true
	case result.Succeeded && at != result.Revision:
		return fmt.Sprintf("%s was put at %d and its client told at %d", told.Key, at, result.Revision)
	case !result.Succeeded && at != 0:
		return fmt.Sprintf("%s was put at %d and its client told that a condition did not hold", told.Key, at)
	case !result.Succeeded && !c.there[Opposite(told.Key)]:
		return fmt.Sprintf("%s was not put although %s is not there", told.Key, Opposite(told.Key))
	}
	return ""
}
