package world

import (
	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// remove deletes a run that has ended, as retention does: a lease for the tombstone
// first, then the transaction, which is decided anew when the record has moved.
func (a *call) remove(try int) {
	a.readAt(func(run *recordv1.Run, mod int64) {
		switch {
		case run == nil:
			a.answer(outcomeRefused, records.ClassNotFound, "no such run")
		case !records.Terminal(run.GetStatus()):
			a.answer(outcomeRefused, records.ClassConflict, "the run has not ended")
		default:
			a.daemon.store.Grant(records.TombstoneTTL, func(granted actors.LeaseResult) {
				if granted.Err != nil {
					// Nothing was deleted, whatever became of the lease.
					a.answer(outcomeRefused, records.ClassUnavailable, granted.Err.Error())
					return
				}
				now := a.daemon.life.Clock().Now().Milli()
				a.retire(a.world.keys.Retire(run, mod, granted.Lease, now), try)
			})
		}
	})
}

func (a *call) retire(txn records.Txn, try int) {
	a.daemon.calls.Txn(txn, func(result records.Result) {
		switch {
		case result.Err != nil:
			a.fail(result.Err)
		case result.Succeeded:
			a.answer(outcomeOK, nil, "is deleted")
		case try < createTriesMax:
			a.remove(try + 1)
		default:
			a.answer(outcomeRefused, records.ClassUnavailable, "the record keeps moving")
		}
	})
}
