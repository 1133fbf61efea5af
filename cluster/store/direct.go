package store

import (
	"context"
	"errors"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	etcderrors "go.etcd.io/etcd/server/v3/etcdserver/errors"
	"go.etcd.io/etcd/server/v3/storage"

	"github.com/errand-run/errand/cluster/flight"
	"github.com/errand-run/errand/cluster/records"
)

// direct hands writes to the embedded server without the client's words for them and
// without the checks of its public face, of which a flight's members need none: they
// touch no key twice, and the server's limit of operations protects it from strangers.
//
// A flight goes as one flat transaction: all conditions of all members, then all that
// they want done. Almost always all hold, and then each member has had what it would
// have had as a child of a transaction, at half the objects to encode, to decode and to
// answer with. If one does not hold nothing was done; then the members go as children,
// each with its own conditions and its own alternative.
type direct struct {
	server transactor
	quota  storage.Quota
}

// transactor is the part of an embedded server that takes transactions.
type transactor interface {
	Txn(ctx context.Context, request *pb.TxnRequest) (*pb.TxnResponse, error)
	Term() uint64
}

func newDirect(server *etcdserver.EtcdServer) *direct {
	return &direct{server: server, quota: storage.NewBackendQuota(server.Logger(), server.Cfg.QuotaBackendBytes, server.Backend(), "kv")}
}

// fly carries a flight out. It reports false when nothing was done and the members have
// to go by the client: a member is not plain, the server is full (which has to be made
// known there), or a condition of a flight of several does not hold.
func (d *direct) fly(ctx context.Context, f *flight.Flight[*pending]) (l landing, decided bool, err error) {
	if d == nil || slices.ContainsFunc(f.Members, func(m *flight.Member[*pending]) bool { return !plain(&m.Txn) }) {
		return landing{}, false, nil
	}
	request := flat(f)
	if !d.quota.Available(request) {
		return landing{}, false, nil
	}
	response, err := d.server.Txn(ctx, request)
	if err != nil {
		return landing{}, true, answered(err)
	}
	if len(f.Members) > 1 && !response.GetSucceeded() {
		return landing{}, false, nil
	}
	response.GetHeader().RaftTerm = d.server.Term()
	return flatLanding(f, (*clientv3.TxnResponse)(response)), true, nil
}

// answered says in the words of the server's public face that nothing was done. All
// other errors leave that open.
func answered(err error) error {
	switch {
	case errors.Is(err, etcderrors.ErrNoSpace):
		return rpctypes.ErrNoSpace
	case errors.Is(err, etcderrors.ErrTooManyRequests):
		return rpctypes.ErrTooManyRequests
	case errors.Is(err, etcderrors.ErrRequestTooLarge):
		return rpctypes.ErrRequestTooLarge
	case errors.Is(err, etcderrors.ErrCorrupt):
		return rpctypes.ErrCorrupt
	default:
		return err
	}
}

// plain tells whether the server's face would find nothing to refuse in a transaction:
// it names single keys, not too many, writes none twice, and puts none under a lease.
func plain(txn *records.Txn) bool {
	if max(len(txn.If), len(txn.Then), len(txn.Else)) > flight.Limit {
		return false
	}
	for i := range txn.If {
		if txn.If[i].Key == "" {
			return false
		}
	}
	return plainOps(txn.Then) && plainOps(txn.Else)
}

func plainOps(ops []records.Op) bool {
	for i := range ops {
		op := &ops[i]
		if op.Key == "" || op.Prefix || op.End != "" || op.Lease != 0 {
			return false
		}
		if op.Kind == records.OpGet {
			continue
		}
		for k := range i {
			if ops[k].Kind != records.OpGet && ops[k].Key == op.Key {
				return false
			}
		}
	}
	return true
}

// flat makes one transaction of a flight. What several members compare alike is
// compared once. One alone brings its alternative with it.
func flat(f *flight.Flight[*pending]) *pb.TxnRequest {
	var compares, ops int
	for _, member := range f.Members {
		compares += len(member.Txn.If)
		ops += len(member.Txn.Then)
	}
	request := &pb.TxnRequest{Compare: make([]*pb.Compare, 0, compares), Success: appendOps(make([]*pb.RequestOp, 0, ops), f.Members[0].Txn.Then)}
	if len(f.Members) == 1 {
		request.Compare = appendCompares(request.Compare, f.Members[0].Txn.If, nil)
		request.Failure = appendOps(nil, f.Members[0].Txn.Else)
		return request
	}
	seen := make(map[records.Compare]struct{}, compares)
	for i, member := range f.Members {
		request.Compare = appendCompares(request.Compare, member.Txn.If, seen)
		if i > 0 {
			request.Success = appendOps(request.Success, member.Txn.Then)
		}
	}
	return request
}

// comparing is a condition and its operand, made at once.
type comparing struct {
	compare pb.Compare
	mod     pb.Compare_ModRevision
	create  pb.Compare_CreateRevision
}

func appendCompares(to []*pb.Compare, compares []records.Compare, seen map[records.Compare]struct{}) []*pb.Compare {
	made := make([]comparing, len(compares))
	for i, compare := range compares {
		if seen != nil {
			if _, found := seen[compare]; found {
				continue
			}
			seen[compare] = struct{}{}
		}
		c := &made[i]
		c.compare.Key = []byte(compare.Key)
		c.compare.Result = resultOfRelation(compare.Relation)
		if compare.Prefix {
			c.compare.RangeEnd = []byte(clientv3.GetPrefixRangeEnd(compare.Key))
		}
		if compare.Target == records.TargetCreate {
			c.create.CreateRevision = compare.Operand
			c.compare.Target, c.compare.TargetUnion = pb.Compare_CREATE, &c.create
		} else {
			c.mod.ModRevision = compare.Operand
			c.compare.Target, c.compare.TargetUnion = pb.Compare_MOD, &c.mod
		}
		to = append(to, &c.compare)
	}
	return to
}

func resultOfRelation(relation records.Relation) pb.Compare_CompareResult {
	switch relation {
	case records.Greater:
		return pb.Compare_GREATER
	case records.NotEqual:
		return pb.Compare_NOT_EQUAL
	default:
		return pb.Compare_EQUAL
	}
}

// putting is an operation that puts, made at once; most do.
type putting struct {
	op      pb.RequestOp
	request pb.RequestOp_RequestPut
	put     pb.PutRequest
}

func appendOps(to []*pb.RequestOp, ops []records.Op) []*pb.RequestOp {
	for i := range ops {
		switch op := &ops[i]; op.Kind {
		case records.OpPut:
			p := &putting{put: pb.PutRequest{Key: []byte(op.Key), Value: op.Value}}
			p.request.RequestPut = &p.put
			p.op.Request = &p.request
			to = append(to, &p.op)
		case records.OpDelete:
			to = append(to, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
				RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte(op.Key)},
			}})
		default:
			get := &pb.RangeRequest{Key: []byte(op.Key), Limit: op.Limit, KeysOnly: op.KeysOnly}
			to = append(to, &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: get}})
		}
	}
	return to
}

// flatLanding gives each member its part of the answer to a flat transaction.
func flatLanding(f *flight.Flight[*pending], response *clientv3.TxnResponse) landing {
	l := landing{revision: response.Header.GetRevision(), term: response.Header.GetRaftTerm()}
	if len(f.Members) == 1 {
		l.results = []records.Result{resultOf(response)}
		return l
	}
	l.results = make([]records.Result, len(f.Members))
	rest := response.Responses
	for i, member := range f.Members {
		own := clientv3.TxnResponse{Header: response.Header, Succeeded: true, Responses: rest[:len(member.Txn.Then)]}
		rest = rest[len(member.Txn.Then):]
		l.results[i] = resultOf(&own)
	}
	return l
}
