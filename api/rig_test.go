package api_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/api"
	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/api/nodelogs"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/messages/errand/v1/errandv1connect"
)

const testToken = "a-token-of-the-tests"

// rig is a server on a real listener and a real store, and a client of it.
type rig struct {
	t       testing.TB
	ctx     context.Context
	keys    records.Keys
	store   *tapStore
	router  *router
	logRoot string
	server  *api.Server
	url     string
	http    *http.Client
	runs    errandv1connect.RunServiceClient
	nodes   errandv1connect.NodeServiceClient
	images  errandv1connect.ImageServiceClient
	// stop stops the server; served is what Serve returned.
	stop   context.CancelFunc
	served chan error
}

var roots atomic.Int64

type cryptoRand struct{}

func (cryptoRand) Fill(b []byte) { _, _ = rand.Read(b) }

func newRig(t testing.TB, changes ...func(*api.Config)) *rig {
	t.Helper()
	r := &rig{t: t, keys: records.Keys{Root: fmt.Sprintf("/t%d/", roots.Add(1)), Shards: 64}, store: &tapStore{Store: etcd}}
	r.serve(changes...)
	return r
}

// another is one more server on the same records: another node, or this one after a
// restart. The store, unless nil, replaces its own.
func (r *rig) another(store api.Store) *rig {
	r.t.Helper()
	other := &rig{t: r.t, keys: r.keys, store: &tapStore{Store: etcd}}
	other.serve(func(config *api.Config) {
		if store != nil {
			config.Store = store
		}
	})
	return other
}

// stopTimeout is how long a server that stops waits for calls that do not end: who is
// not to be waited for has been when it took so long.
const stopTimeout = 30 * time.Second

// serve starts the server and makes its clients.
func (r *rig) serve(changes ...func(*api.Config)) {
	r.t.Helper()
	r.logRoot, r.served = r.t.TempDir(), make(chan error, 1)
	var cancel context.CancelFunc
	r.ctx, cancel = context.WithTimeout(context.Background(), 10*time.Minute)
	r.router = &router{rig: r, tells: make(chan struct{}, 64)}
	config := api.Config{
		Node: "n1", Keys: r.keys, Store: r.store, Router: r.router, Logs: nodelogs.New(r.logRoot), Rand: cryptoRand{},
		Drivers: []string{"process", "containerd", "null"}, Token: testToken, StopTimeout: stopTimeout,
	}
	for _, change := range changes {
		change(&config)
	}
	var err error
	if r.server, err = api.New(config); err != nil {
		r.t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	serving, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() { r.served <- r.server.Serve(serving, listener) }()
	r.url = "http://" + listener.Addr().String()
	r.http = newHTTPClient(true)
	r.runs, r.nodes, r.images = clients(r.http, r.url, testToken)
	r.t.Cleanup(func() {
		cancel()
		r.http.CloseIdleConnections()
		stop()
		if err := <-r.served; err != nil {
			r.t.Errorf("serve: %v", err)
		}
	})
}

func newHTTPClient(h2 bool) *http.Client {
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(h2)
	protocols.SetHTTP1(!h2)
	return &http.Client{Transport: &http.Transport{Protocols: protocols}}
}

// bearer adds the token to every call.
type bearer string

func (b bearer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		request.Header().Set("Authorization", "Bearer "+string(b))
		return next(ctx, request)
	}
}

func (b bearer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		conn.RequestHeader().Set("Authorization", "Bearer "+string(b))
		return conn
	}
}

func (b bearer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

func clients(client *http.Client, url, token string, options ...connect.ClientOption) (errandv1connect.RunServiceClient, errandv1connect.NodeServiceClient, errandv1connect.ImageServiceClient) {
	if token != "" {
		options = append(options, connect.WithInterceptors(bearer(token)))
	}
	return errandv1connect.NewRunServiceClient(client, url, options...),
		errandv1connect.NewNodeServiceClient(client, url, options...),
		errandv1connect.NewImageServiceClient(client, url, options...)
}

// tapStore is the real store; a test may lose answers or count transactions.
type tapStore struct {
	api.Store
	count atomic.Int64
	// follows counts those that were begun.
	follows atomic.Int64
	// do replaces Do if set.
	do func(ctx context.Context, txn records.Txn) (records.Result, error)
}

func (s *tapStore) Do(ctx context.Context, txn records.Txn) (records.Result, error) {
	s.count.Add(1)
	if s.do != nil {
		return s.do(ctx, txn)
	}
	return s.Store.Do(ctx, txn)
}

func (s *tapStore) FollowChanges(prefix string, deliver func(records.Batch)) (stop func()) {
	s.follows.Add(1)
	return s.Store.FollowChanges(prefix, deliver)
}

func (s *tapStore) Scan(ctx context.Context, scan records.Scan) ([]records.KV, error) {
	s.count.Add(1)
	return s.Store.Scan(ctx, scan)
}

// router stands in for the actors: it notes what is told, and answers Cancel by
// the transactions of the protocol.
type router struct {
	rig  *rig
	mu   sync.Mutex
	told []proto.Message
	// tells has a token for each message while there is room.
	tells chan struct{}
	// ask replaces the answer to Cancel if set.
	ask func(message proto.Message) (proto.Message, error)
}

func (r *router) Tell(_, _ string, message proto.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, message)
	select {
	case r.tells <- struct{}{}:
	default:
	}
}

func (r *router) wakes() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.told)
}

func (r *router) AskRepeatedly(_ context.Context, kind, identity string, message proto.Message) (proto.Message, error) {
	if r.ask != nil {
		return r.ask(message)
	}
	cancel, ok := message.(*actorv1.Cancel)
	if !ok || kind != actors.KindRun || cancel.GetRun() != identity {
		return nil, errors.New("not a cancel")
	}
	run, mod := r.rig.record(identity)
	if records.Terminal(run.GetStatus()) {
		return &actorv1.Canceled{Outcome: actorv1.Canceled_OUTCOME_TERMINAL, Revision: mod}, nil
	}
	run.Wish = &recordv1.Wish{Reason: recordv1.Reason_REASON_CANCELED, By: cancel.GetBy(), Force: cancel.GetForce(), At: 5}
	return &actorv1.Canceled{Outcome: actorv1.Canceled_OUTCOME_RECORDED, Revision: r.rig.commit(r.rig.keys.Update(run, mod, 9))}, nil
}

// commit carries a transaction out that must succeed and returns its revision.
func (r *rig) commit(txn records.Txn) int64 {
	r.t.Helper()
	result, err := etcd.Do(context.Background(), txn)
	if err != nil || !result.Succeeded {
		r.t.Errorf("commit: %v, succeeded %t", err, result.Succeeded)
	}
	return result.Revision
}

func (r *rig) record(id string) (*recordv1.Run, int64) {
	r.t.Helper()
	result, err := etcd.Do(context.Background(), records.Read(records.Get(r.keys.Run(id))))
	if err != nil {
		r.t.Fatal(err)
	}
	kv, ok := result.First(0)
	if !ok {
		r.t.Fatalf("no record of %s", id)
	}
	run, err := records.DecodeRun(kv)
	if err != nil {
		r.t.Fatal(err)
	}
	return run, kv.Mod
}

// put makes a run of a given id, as Create does.
func (r *rig) put(id string, change func(*recordv1.Run)) {
	r.t.Helper()
	app, err := records.AppOfRun(id)
	if err != nil {
		r.t.Fatal(err)
	}
	run := &recordv1.Run{Id: id, App: app, Status: recordv1.Status_STATUS_PENDING, Attempt: 1, CreatedAt: 1000, QueuedAt: 1000, Spec: &recordv1.Spec{Driver: "null"}}
	if change != nil {
		change(run)
	}
	r.commit(r.keys.Create(run, 1000))
}

// update changes a run that stays live.
func (r *rig) update(id string, change func(*recordv1.Run)) {
	r.t.Helper()
	run, mod := r.record(id)
	change(run)
	r.commit(r.keys.Update(run, mod, 2000))
}

// end makes a run terminal.
func (r *rig) end(id string, status recordv1.Status, endedMs int64) {
	r.t.Helper()
	run, mod := r.record(id)
	run.Status, run.EndedAt = status, endedMs
	r.commit(r.keys.End(run, mod, run.GetPlacement().GetNode()))
}

// asBefore gives an ended run's line of history the key of the older form.
func (r *rig) asBefore(id string) {
	r.t.Helper()
	run, _ := r.record(id)
	class := records.ClassOfTrigger(run.GetTrigger())
	line := records.Encode(&recordv1.History{Status: run.GetStatus(), Name: run.GetName()})
	r.commit(records.Txn{Then: []records.Op{
		{Kind: records.OpDelete, Key: r.keys.History(id, run.GetApp(), class, run.GetEndedAt())},
		{Kind: records.OpPut, Key: r.keys.HistoryForward(id, run.GetApp(), class, run.GetEndedAt()), Value: line},
	}})
}

// retire deletes a run, as retention does.
func (r *rig) retire(id string) {
	r.t.Helper()
	gone := records.Op{Kind: records.OpPut, Key: r.keys.Gone(id), Value: records.Encode(&recordv1.Gone{DeletedAt: 1})}
	r.commit(records.Txn{Then: []records.Op{{Kind: records.OpDelete, Key: r.keys.Run(id)}, gone}})
}

func (r *rig) create(change func(*errandv1.CreateRunRequest)) *errandv1.CreateRunResponse {
	r.t.Helper()
	request := &errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{Command: []string{"true"}}}
	if change != nil {
		change(request)
	}
	response, err := r.runs.Create(r.ctx, request)
	if err != nil {
		r.t.Fatalf("create: %v", err)
	}
	return response
}

// get makes a plain HTTP request.
func (r *rig) get(path string, change func(*http.Request)) (int, string) {
	r.t.Helper()
	request, err := http.NewRequestWithContext(r.ctx, http.MethodGet, r.url+path, http.NoBody)
	if err != nil {
		r.t.Fatal(err)
	}
	if change != nil {
		change(request)
	}
	return r.send(request)
}

// post sends JSON, as curl would.
func (r *rig) post(path, body string, change func(*http.Request)) (int, string) {
	r.t.Helper()
	request, err := http.NewRequestWithContext(r.ctx, http.MethodPost, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	if change != nil {
		change(request)
	}
	return r.send(request)
}

func (r *rig) send(request *http.Request) (int, string) {
	r.t.Helper()
	client := newHTTPClient(false)
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func withToken(request *http.Request) { request.Header.Set("Authorization", "Bearer "+testToken) }

// wantCode fails the test unless the error has a stable code and the Connect code
// that the table gives it.
func wantCode(t testing.TB, err error, want codes.Code) {
	t.Helper()
	var made *connect.Error
	if !errors.As(err, &made) {
		t.Errorf("got %v, want %s", err, want)
		return
	}
	var got codes.Code
	for _, detail := range made.Details() {
		if value, err := detail.Value(); err == nil {
			if info, ok := value.(*errandv1.ErrorInfo); ok {
				got = codes.Code(info.GetCode())
			}
		}
	}
	for _, line := range codes.All() {
		if line.Code == want && (got != want || made.Code() != line.Class) {
			t.Errorf("got %s %s (%v), want %s %s", made.Code(), got, err, line.Class, want)
		}
	}
}
