package world

import (
	"fmt"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/simulation/check"
	"github.com/errand-run/errand/simulation/history"
)

// contendedPairs is how many pairs of keys one call is about.
const contendedPairs = 3

// contend hands transactions to the node's store at one moment, most of which get in
// each other's way, and answers when all are answered.
func (a *call) contend() {
	var keys []string
	for i := range contendedPairs {
		pair := fmt.Sprintf("%s%s%s/%d/", a.world.keys.Root, history.ContendedFolder, a.Label, i)
		keys = append(keys, pair+"mark", pair+history.ContendedLeft, pair+history.ContendedRight)
	}
	told := make([]history.Contended, len(keys))
	left := len(keys)
	for i, key := range keys {
		told[i] = history.Contended{Key: key, Value: fmt.Sprintf("%s of call %d", key, a.id)}
		a.daemon.calls.Txn(contended(key, told[i].Value), func(result records.Result) {
			told[i].Result = result
			if left--; left == 0 {
				a.answer(outcomeOK, told, "all are answered")
			}
		})
	}
}

// contended puts a key, and if it is one of a pair only while the other is not there.
func contended(key, value string) records.Txn {
	txn := records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: key, Value: []byte(value)}}}
	if other := check.Opposite(key); other != "" {
		txn.If = []records.Compare{{Key: other, Target: records.TargetCreate, Relation: records.Equal}}
		txn.Else = []records.Op{records.Get(other)}
	}
	return txn
}
