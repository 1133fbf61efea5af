package check

import (
	"time"

	"github.com/errand-run/errand/simulation/history"
)

// restore takes what a copy of the store holds for what is there from now on. What has
// been started stays started: commands, and the tokens that they carry, are not of the
// store.
func (l *Ledger) restore(restored history.Restore) {
	l.restoredAt, l.raw = l.now, l.raw || restored.Raw
	lost := map[*Run]bool{}
	for _, r := range l.order {
		lost[r] = r.Record != nil
		r.Before, r.Record, r.Live, r.Gone, r.Assignments = nil, nil, false, false, nil
		// The copy may hold any of its lives.
		r.Commands, r.Former = append(r.Former, r.Commands...), nil
		r.liveIndex = -1
	}
	l.live = l.live[:0]
	commit := history.Commit{}
	for i := range restored.Records {
		kv := &restored.Records[i]
		commit.Changes = append(commit.Changes, history.Change{Key: kv.Key, Before: kv, After: kv})
	}
	for _, change := range commit.Changes {
		l.place(change)
	}
	l.hearAgain(restored.Records)
	l.changed, l.broken = nil, nil
	for _, r := range l.order {
		if r.Record == nil && lost[r] {
			r.Deleted++
		}
		r.Before, r.Rewritten, r.Forgotten = r.Record, false, false
		l.index(r)
	}
}

// fading tells whether the store went back so little time ago that what was asked for
// before may still happen, on nodes that can not know yet: by the end of it their fences
// have come.
func (l *Ledger) fading() bool {
	return l.restoredAt > 0 && l.now-l.restoredAt <= l.config.Session.LossAfter()
}

// RestoredSince tells whether the store has gone back since a time.
func (l *Ledger) RestoredSince(since time.Duration) bool {
	return l.restoredAt > 0 && l.restoredAt >= since
}
