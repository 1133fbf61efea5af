package store

import (
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/errand-run/errand/cluster/flight"
	"github.com/errand-run/errand/cluster/records"
)

// compile turns a transaction into etcd's words.
func compile(txn records.Txn) ([]clientv3.Cmp, []clientv3.Op, []clientv3.Op) {
	conditions := make([]clientv3.Cmp, len(txn.If))
	for i, compare := range txn.If {
		conditions[i] = compileCompare(compare)
	}
	return conditions, compileOps(txn.Then), compileOps(txn.Else)
}

func compileCompare(compare records.Compare) clientv3.Cmp {
	target := clientv3.ModRevision(compare.Key)
	if compare.Target == records.TargetCreate {
		target = clientv3.CreateRevision(compare.Key)
	}
	compiled := clientv3.Compare(target, relations[compare.Relation], compare.Operand)
	if compare.Prefix {
		compiled = compiled.WithPrefix()
	}
	return compiled
}

var relations = map[records.Relation]string{records.Equal: "=", records.NotEqual: "!=", records.Greater: ">"}

func compileOps(ops []records.Op) []clientv3.Op {
	compiled := make([]clientv3.Op, len(ops))
	for i, op := range ops {
		compiled[i] = compileOp(op)
	}
	return compiled
}

func compileOp(op records.Op) clientv3.Op {
	switch op.Kind {
	case records.OpPut:
		return clientv3.OpPut(op.Key, string(op.Value), clientv3.WithLease(clientv3.LeaseID(op.Lease)))
	case records.OpDelete:
		if op.Prefix {
			return clientv3.OpDelete(op.Key, clientv3.WithPrefix())
		}
		return clientv3.OpDelete(op.Key)
	default:
		return compileGet(op)
	}
}

func compileGet(op records.Op) clientv3.Op {
	options := make([]clientv3.OpOption, 0, 4)
	switch {
	case op.End != "":
		options = append(options, clientv3.WithRange(op.End))
	case op.Prefix:
		options = append(options, clientv3.WithPrefix())
	}
	if op.Limit > 0 {
		options = append(options, clientv3.WithLimit(op.Limit))
	}
	if op.KeysOnly {
		options = append(options, clientv3.WithKeysOnly())
	}
	if op.Descending {
		options = append(options, clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend))
	}
	return clientv3.OpGet(op.Key, options...)
}

// check refuses what compile has no words for, so that no operation is ever
// taken for another.
func check(txn records.Txn) error {
	for _, compare := range txn.If {
		known := compare.Target == records.TargetMod || compare.Target == records.TargetCreate
		if _, ok := relations[compare.Relation]; !ok || !known {
			return records.Errorf(records.ClassInvalid, "compare of %q: target %d, relation %d", compare.Key, compare.Target, compare.Relation)
		}
	}
	for _, ops := range [][]records.Op{txn.Then, txn.Else} {
		for _, op := range ops {
			if op.Kind < records.OpGet || op.Kind > records.OpDelete {
				return records.Errorf(records.ClassInvalid, "operation on %q of kind %d", op.Key, op.Kind)
			}
		}
	}
	return nil
}

// resultOf turns etcd's answer into a result. Only the outer header has a
// revision.
func resultOf(response *clientv3.TxnResponse) records.Result {
	result := records.Result{
		Succeeded: response.Succeeded,
		Revision:  response.Header.GetRevision(),
		Responses: make([]records.OpResult, len(response.Responses)),
		Term:      response.Header.GetRaftTerm(),
	}
	for i, op := range response.Responses {
		switch answer := op.GetResponse().(type) {
		case *pb.ResponseOp_ResponseRange:
			result.Responses[i] = records.OpResult{KVs: kvsOf(answer.ResponseRange.GetKvs()), Count: answer.ResponseRange.GetCount()}
		case *pb.ResponseOp_ResponseDeleteRange:
			result.Responses[i] = records.OpResult{Count: answer.ResponseDeleteRange.GetDeleted()}
		case *pb.ResponseOp_ResponsePut:
		default:
			result.Err = records.Errorf(records.ClassInternal, "store: %s", fmt.Sprintf("an answer of type %T", answer))
		}
	}
	return result
}

// landedOf turns etcd's answer to a flight into what became of each member. The
// machine takes revision and term of the outer header.
func landedOf(f *flight.Flight[*pending], response *clientv3.TxnResponse) landing {
	l := landing{revision: response.Header.GetRevision(), term: response.Header.GetRaftTerm()}
	if len(f.Members) == 1 {
		l.results = []records.Result{resultOf(response)}
		return l
	}
	l.results = make([]records.Result, 0, len(f.Members))
	for _, op := range response.Responses {
		if child := op.GetResponseTxn(); child != nil {
			l.results = append(l.results, resultOf((*clientv3.TxnResponse)(child)))
		}
	}
	return l
}

func kvsOf(kvs []*mvccpb.KeyValue) []records.KV {
	if len(kvs) == 0 {
		return nil
	}
	converted := make([]records.KV, len(kvs))
	for i, kv := range kvs {
		converted[i] = kvOf(kv)
	}
	return converted
}

func kvOf(kv *mvccpb.KeyValue) records.KV {
	return records.KV{
		Key: string(kv.GetKey()), Value: kv.GetValue(),
		Create: kv.GetCreateRevision(), Mod: kv.GetModRevision(), Version: kv.GetVersion(), Lease: kv.GetLease(),
	}
}
