package records

import (
	"time"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// TombstoneTTL is how long it is remembered that a deleted run existed: longer than
// any client repeats a submit, and than any write of unknown outcome is waited for.
const TombstoneTTL = 24 * time.Hour

// Retire deletes a run that has ended, and its line in the history, and leaves a
// tombstone that goes with its lease, so that nothing that is still under way creates
// the run again. The record is that which was read at mod; the lease is one of
// TombstoneTTL that was granted for this tombstone. Its Else answers the record.
func (k Keys) Retire(run *recordv1.Run, mod, lease, deletedAtMs int64) Txn {
	id, class := run.GetId(), ClassOfTrigger(run.GetTrigger())
	tombstone := put(k.Gone(id), Encode(&recordv1.Gone{DeletedAt: deletedAtMs}))
	tombstone.Lease = lease
	txn := k.change(ChangeRetire, run, mod, []Op{
		del(k.Run(id)),
		del(k.History(id, run.GetApp(), class, run.GetEndedAt())),
		del(k.HistoryForward(id, run.GetApp(), class, run.GetEndedAt())),
		tombstone,
	})
	txn.If = append(txn.If, absent(k.Live(id)))
	return txn
}
