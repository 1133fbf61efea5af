package etcd

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/cluster/records"
)

// subject is an etcd: the model, or the real one.
type subject interface {
	txn(txn Txn) (Response, error)
	grant(seconds int64) int64
	keepAlive(lease int64) error
	revoke(lease int64) error
	compact(revision int64) error
	// local reads a key without asking others.
	local(key string) []records.KV
	// watch hears of a prefix from a revision on.
	watch(prefix string, from int64) *heard
	// await lets time pass until something is so.
	await(what string, is func() bool)
	pass(d time.Duration)
	now() time.Duration
}

// heard is what a watch has brought so far.
type heard struct {
	mu      sync.Mutex
	batches []records.Batch
	err     error
}

func (h *heard) add(batch records.Batch, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.err = err
	} else {
		h.batches = append(h.batches, batch)
	}
}

func (h *heard) events() (events []records.Event, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, b := range h.batches {
		events = append(events, b.Events...)
	}
	return events, h.err
}

// patience bounds the waits of tests for what normally takes milliseconds.
const patience = 2 * time.Minute

// model is the model as a subject, with one client.
type model struct {
	*bench
	t      testing.TB
	client *Client
}

func newModel(t testing.TB) *model {
	b := newBench(1, DefaultOptions(1))
	return &model{bench: b, t: t, client: b.cluster.Client("n1")}
}

func (m *model) txn(txn Txn) (Response, error) { return m.cluster.Admin(&txn) }

func (m *model) grant(seconds int64) int64 {
	r := m.lease(m.t, func(d func(actors.LeaseResult)) { m.client.Grant(time.Duration(seconds)*time.Second, d) })
	if r.Err != nil {
		m.t.Fatal(r.Err)
	}
	return r.Lease
}

func (m *model) keepAlive(lease int64) error {
	return m.lease(m.t, func(d func(actors.LeaseResult)) { m.client.KeepAlive(lease, d) }).Err
}

func (m *model) revoke(lease int64) error {
	return m.lease(m.t, func(d func(actors.LeaseResult)) { m.client.Revoke(lease, d) }).Err
}

func (m *model) compact(revision int64) error { return m.cluster.Compact(revision) }

func (m *model) local(key string) []records.KV {
	var got *records.Result
	m.client.ReadLocal(get(key), func(r records.Result) { got = &r })
	m.until(m.t, "local read", func() bool { return got != nil })
	return got.Responses[0].KVs
}

func (m *model) watch(prefix string, from int64) *heard {
	h := &heard{}
	m.client.Watch(prefix, from, false, h.add)
	m.advance(time.Second)
	return h
}

func (m *model) await(what string, is func() bool) { m.until(m.t, what, is) }

func (m *model) pass(d time.Duration) { m.advance(d) }

func (m *model) now() time.Duration { return m.line.Now() }

// actual is a real server in this process as a subject.
type actual struct {
	t      testing.TB
	server *embed.Etcd
	client *clientv3.Client
	began  time.Time
}

func startActual(t testing.TB) *actual {
	t.Helper()
	config := embed.NewConfig()
	config.Name, config.Dir = "etcd", t.TempDir()
	config.UnsafeNoFsync = true
	config.EnableGRPCGateway = false
	config.TickMs, config.ElectionMs = 20, 100
	config.AuthToken = ""
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	peer := url.URL{Scheme: "unix", Path: "/etcd.peer"}
	config.ListenPeerUrls, config.AdvertisePeerUrls = nil, []url.URL{peer}
	config.InitialCluster = "etcd=" + peer.String()
	config.ListenClientUrls, config.AdvertiseClientUrls = nil, []url.URL{{Scheme: "unix", Path: config.Dir + "/s"}}
	server, err := embed.StartEtcd(config)
	if err != nil {
		t.Fatal(err)
	}
	client := v3client.New(server.Server)
	t.Cleanup(func() {
		_ = client.Close()
		server.Close()
	})
	select {
	case <-server.Server.ReadyNotify():
	case <-time.After(patience):
		t.Fatal("the server does not get ready")
	}
	return &actual{t: t, server: server, client: client, began: time.Now()}
}

func (a *actual) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	a.t.Cleanup(cancel)
	return ctx
}

func (a *actual) txn(txn Txn) (Response, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	response, err := a.client.Txn(ctx).If(comparesOf(txn.If)...).Then(opsOf(txn.Then)...).Else(opsOf(txn.Else)...).Commit()
	if err != nil {
		return Response{}, err
	}
	return responseOf((*pb.TxnResponse)(response)), nil
}

func (a *actual) grant(seconds int64) int64 {
	response, err := a.client.Grant(a.ctx(), seconds)
	if err != nil {
		a.t.Fatal(err)
	}
	return int64(response.ID)
}

func (a *actual) keepAlive(lease int64) error {
	_, err := a.client.KeepAliveOnce(a.ctx(), clientv3.LeaseID(lease))
	return err
}

func (a *actual) revoke(lease int64) error {
	_, err := a.client.Revoke(a.ctx(), clientv3.LeaseID(lease))
	return err
}

func (a *actual) compact(revision int64) error {
	_, err := a.client.Compact(a.ctx(), revision, clientv3.WithCompactPhysical())
	return err
}

func (a *actual) local(key string) []records.KV {
	response, err := a.client.Get(a.ctx(), key, clientv3.WithSerializable())
	if err != nil {
		a.t.Fatal(err)
	}
	return kvsOf(response.Kvs)
}

func (a *actual) watch(prefix string, from int64) *heard {
	h := &heard{}
	ctx, cancel := context.WithCancel(context.Background())
	var forward sync.WaitGroup
	a.t.Cleanup(func() { cancel(); forward.Wait() })
	responses := a.client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(from))
	forward.Go(func() {
		for r := range responses {
			if err := r.Err(); err != nil {
				h.add(records.Batch{}, err)
				continue
			}
			batch := records.Batch{Revision: r.Header.Revision}
			for _, e := range r.Events {
				batch.Events = append(batch.Events, records.Event{KV: kvOf(e.Kv), Deleted: e.Type == clientv3.EventTypeDelete})
			}
			h.add(batch, nil)
		}
	})
	return h
}

func (a *actual) await(what string, is func() bool) {
	limit := time.NewTimer(patience)
	defer limit.Stop()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !is() {
		select {
		case <-look.C:
		case <-limit.C:
			a.t.Fatalf("no %s within %v", what, patience)
		}
	}
}

func (a *actual) pass(d time.Duration) { <-time.After(d) }

func (a *actual) now() time.Duration { return time.Since(a.began) }

// endOf is the end of a span as etcd takes it; "" means one key.
func endOf(s *Span) string {
	if s.Prefix {
		return clientv3.GetPrefixRangeEnd(s.Key)
	}
	return s.End
}

func comparesOf(compares []Compare) []clientv3.Cmp {
	targets := map[Target]pb.Compare_CompareTarget{
		TargetMod: pb.Compare_MOD, TargetCreate: pb.Compare_CREATE, TargetVersion: pb.Compare_VERSION,
		TargetLease: pb.Compare_LEASE, TargetValue: pb.Compare_VALUE,
	}
	results := map[Relation]pb.Compare_CompareResult{
		Equal: pb.Compare_EQUAL, NotEqual: pb.Compare_NOT_EQUAL, Greater: pb.Compare_GREATER, Less: pb.Compare_LESS,
	}
	cmps := make([]clientv3.Cmp, len(compares))
	for i := range compares {
		c := &compares[i]
		to := &pb.Compare{Key: []byte(c.Key), RangeEnd: []byte(endOf(&c.Span)), Target: targets[c.Target], Result: results[c.Relation]}
		switch c.Target {
		case TargetMod:
			to.TargetUnion = &pb.Compare_ModRevision{ModRevision: c.Operand}
		case TargetCreate:
			to.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: c.Operand}
		case TargetVersion:
			to.TargetUnion = &pb.Compare_Version{Version: c.Operand}
		case TargetLease:
			to.TargetUnion = &pb.Compare_Lease{Lease: c.Operand}
		case TargetValue:
			to.TargetUnion = &pb.Compare_Value{Value: c.Value}
		}
		cmps[i] = clientv3.FromCompare(to)
	}
	return cmps
}

func opsOf(ops []Op) []clientv3.Op {
	to := make([]clientv3.Op, len(ops))
	for i := range ops {
		op := &ops[i]
		var options []clientv3.OpOption
		if end := endOf(&op.Span); end != "" {
			options = append(options, clientv3.WithRange(end))
		}
		switch op.Kind {
		case Put:
			to[i] = clientv3.OpPut(op.Key, string(op.Value), clientv3.WithLease(clientv3.LeaseID(op.Lease)))
		case Delete:
			to[i] = clientv3.OpDelete(op.Key, options...)
		case Nested:
			to[i] = clientv3.OpTxn(comparesOf(op.Txn.If), opsOf(op.Txn.Then), opsOf(op.Txn.Else))
		default:
			options = append(options, clientv3.WithLimit(op.Limit), clientv3.WithRev(op.Revision))
			if op.KeysOnly {
				options = append(options, clientv3.WithKeysOnly())
			}
			if op.Descending {
				options = append(options, clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend))
			}
			to[i] = clientv3.OpGet(op.Key, options...)
		}
	}
	return to
}

func responseOf(from *pb.TxnResponse) Response {
	to := Response{Succeeded: from.Succeeded, Revision: from.GetHeader().GetRevision()}
	for _, op := range from.Responses {
		var r OpResponse
		switch answer := op.GetResponse().(type) {
		case *pb.ResponseOp_ResponseRange:
			r = OpResponse{KVs: kvsOf(answer.ResponseRange.Kvs), Count: answer.ResponseRange.Count, More: answer.ResponseRange.More}
		case *pb.ResponseOp_ResponseDeleteRange:
			r.Count = answer.ResponseDeleteRange.Deleted
		case *pb.ResponseOp_ResponseTxn:
			child := responseOf(answer.ResponseTxn)
			r.Txn = &child
		}
		to.Ops = append(to.Ops, r)
	}
	return to
}

func kvsOf(from []*mvccpb.KeyValue) []records.KV {
	var kvs []records.KV
	for _, kv := range from {
		kvs = append(kvs, kvOf(kv))
	}
	return kvs
}

func kvOf(kv *mvccpb.KeyValue) records.KV {
	to := records.KV{Key: string(kv.Key), Create: kv.CreateRevision, Mod: kv.ModRevision, Version: kv.Version, Lease: kv.Lease}
	if len(kv.Value) > 0 {
		to.Value = kv.Value
	}
	return to
}

// refusalOf is a refusal's own text, however it is wrapped; both subjects use
// etcd's.
func refusalOf(err error) string {
	if err == nil {
		return ""
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "deadline"
	}
	text := err.Error()
	if at := strings.Index(text, "etcdserver: "); at >= 0 {
		return text[at:]
	}
	return text
}

// onBoth runs a test on the model and on the real thing.
func onBoth(t *testing.T, test func(t *testing.T, s subject)) {
	t.Helper()
	t.Run("model", func(t *testing.T) { test(t, newModel(t)) })
	t.Run("etcd", func(t *testing.T) { test(t, startActual(t)) })
}
