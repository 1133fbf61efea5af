package api_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/errand-run/errand/api"
	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// overTheWire and direct are the two ways to the rig's server.
func (r *rig) overTheWire() client.Services {
	return client.Services{Runs: r.runs, Nodes: r.nodes, Images: r.images}
}

func (r *rig) direct() client.Services {
	return api.Direct(func() (*api.Server, error) { return r.server, nil }, r.overTheWire())
}

// wayCase is a call that means the same whichever way it goes.
type wayCase struct {
	name string
	// prepare is what the rig has before.
	prepare func(*rig)
	config  func(*api.Config)
	call    func(context.Context, client.Services) (proto.Message, error)
	// want is empty for a call that succeeds.
	want codes.Code
	// class is for an error that is not the server's. Over the wire an empty request
	// arrives then, which is not what the caller sees.
	class connect.Code
	// check looks at what the call has left.
	check func(*testing.T, *rig)
}

// plain makes a call's answer a message of no type.
func plain[M proto.Message](message M, err error) (proto.Message, error) {
	if err != nil {
		return nil, err
	}
	return message, nil
}

func creating(change func(*errandv1.CreateRunRequest)) func(context.Context, client.Services) (proto.Message, error) {
	return func(ctx context.Context, s client.Services) (proto.Message, error) {
		request := &errandv1.CreateRunRequest{
			App: "web", Name: "n", Labels: map[string]string{"a": "b"}, IdempotencyKey: "k",
			Spec: &errandv1.RunSpec{Driver: "process", Command: []string{"true"}, Env: map[string]string{"A": "1", "B": "2"}, Timeout: durationpb.New(time.Minute)},
		}
		if change != nil {
			change(request)
		}
		return plain(s.Runs.Create(ctx, request))
	}
}

func getting(id string) func(context.Context, client.Services) (proto.Message, error) {
	return func(ctx context.Context, s client.Services) (proto.Message, error) {
		return plain(s.Runs.Get(ctx, &errandv1.GetRunRequest{Id: id, History: true}))
	}
}

func listing(request *errandv1.ListRunsRequest) func(context.Context, client.Services) (proto.Message, error) {
	return func(ctx context.Context, s client.Services) (proto.Message, error) {
		return plain(s.Runs.List(ctx, request))
	}
}

func waiting(timeout time.Duration) func(context.Context, client.Services) (proto.Message, error) {
	return func(ctx context.Context, s client.Services) (proto.Message, error) {
		return plain(s.Runs.Wait(ctx, &errandv1.WaitRunRequest{Id: "r.web.a", Timeout: durationpb.New(timeout)}))
	}
}

func canceling(request *errandv1.CancelRunRequest) func(context.Context, client.Services) (proto.Message, error) {
	return func(ctx context.Context, s client.Services) (proto.Message, error) {
		return plain(s.Runs.Cancel(ctx, request))
	}
}

func aRun(r *rig) { r.put("r.web.a", nil) }

func anEndedRun(r *rig) {
	aRun(r)
	r.end("r.web.a", recordv1.Status_STATUS_SUCCEEDED, 5000)
}

func failing(class records.Class) func(*rig) {
	return func(r *rig) {
		r.store.do = func(context.Context, records.Txn) (records.Result, error) {
			return records.Result{}, records.Errorf(class, "etcd says no")
		}
	}
}

func full(r *rig) { r.server.SetStreams(api.StreamsMax) }

func nothingCreated(t *testing.T, r *rig) {
	t.Helper()
	if asked, told := r.store.count.Load(), r.router.wakes(); asked != 0 || told != 0 {
		t.Errorf("the store was asked %d times, %d actors were told", asked, told)
	}
}

var wayCases = []wayCase{
	{name: "a creation", call: creating(nil)},
	{name: "a creation that waits for a run that is there", prepare: func(r *rig) {
		id := r.create(func(q *errandv1.CreateRunRequest) { q.IdempotencyKey = "k" }).GetRun().GetId()
		r.end(id, recordv1.Status_STATUS_FAILED, 9000)
	}, call: creating(func(q *errandv1.CreateRunRequest) {
		*q = errandv1.CreateRunRequest{IdempotencyKey: "k", Spec: &errandv1.RunSpec{Command: []string{"true"}}, Wait: durationpb.New(time.Minute)}
	})},
	{name: "faults of several fields", want: codes.InvalidField, call: creating(func(q *errandv1.CreateRunRequest) {
		q.App, q.Spec.Timeout, q.Spec.Driver = "No", durationpb.New(-1), "none"
	}), check: nothingCreated},
	{name: "no request", want: codes.InvalidField, call: func(ctx context.Context, s client.Services) (proto.Message, error) {
		return plain(s.Runs.Create(ctx, nil))
	}},
	{name: "text that is none", class: connect.CodeInternal, call: creating(func(q *errandv1.CreateRunRequest) { q.Name = "\xff" }), check: nothingCreated},
	{name: "more than a request may hold", want: codes.RequestTooLarge, call: creating(func(q *errandv1.CreateRunRequest) { q.Name = strings.Repeat("x", 25<<20) }), check: nothingCreated},
	{name: "more than a field may hold", want: codes.InvalidField, call: creating(func(q *errandv1.CreateRunRequest) { q.Name = strings.Repeat("x", 1<<20) })},
	{name: "a key that was used", want: codes.IdempotencyConflict, prepare: func(r *rig) {
		r.create(func(q *errandv1.CreateRunRequest) { q.App, q.IdempotencyKey = "web", "k" })
	}, call: creating(nil)},
	{name: "a store that is away", want: codes.StoreUnavailable, prepare: failing(records.ClassUnavailable), call: creating(nil)},
	{name: "a store that does not say", want: codes.OutcomeUnknown, prepare: failing(records.ClassOutcomeUnknown), call: creating(nil)},
	{name: "a panic", want: codes.Internal, prepare: func(r *rig) {
		r.store.do = func(context.Context, records.Txn) (records.Result, error) { panic("a secret") }
	}, call: creating(nil)},
	{name: "too many streams for a creation that waits", want: codes.TooManyStreams, prepare: full, call: creating(func(q *errandv1.CreateRunRequest) {
		q.Wait = durationpb.New(time.Minute)
	}), check: nothingCreated},
	{name: "too many streams for a wait", want: codes.TooManyStreams, prepare: func(r *rig) { aRun(r); full(r) }, call: waiting(time.Minute)},
	{name: "a run and its history", prepare: anEndedRun, call: getting("r.web.a")},
	{name: "a run by its beginning", prepare: aRun, call: getting("r.w")},
	{name: "a beginning of several", want: codes.RunAmbiguous, prepare: func(r *rig) { aRun(r); r.put("r.web.b", nil) }, call: getting("r.web.")},
	{name: "a run that is not there", want: codes.RunNotFound, call: getting("r.web.a")},
	{name: "a run that was deleted", want: codes.RunDeleted, prepare: func(r *rig) { aRun(r); r.retire("r.web.a") }, call: getting("r.web.a")},
	{name: "a page", prepare: func(r *rig) { anEndedRun(r); r.put("r.web.b", nil) }, call: listing(&errandv1.ListRunsRequest{})},
	{name: "a page token that is none", want: codes.InvalidPageToken, call: listing(&errandv1.ListRunsRequest{PageToken: "x"})},
	{name: "a cancel", prepare: aRun, call: canceling(&errandv1.CancelRunRequest{Id: "r.web.a", By: "me"})},
	{name: "a cancel of what has ended", want: codes.RunTerminal, prepare: anEndedRun, call: canceling(&errandv1.CancelRunRequest{Id: "r.web.a"})},
	{name: "an actor that does not answer", want: codes.OutcomeUnknown, prepare: func(r *rig) {
		aRun(r)
		r.router.ask = func(proto.Message) (proto.Message, error) { return nil, context.DeadlineExceeded }
	}, call: canceling(&errandv1.CancelRunRequest{Id: "r.web.a"})},
	{name: "a wait until its time", prepare: aRun, call: waiting(time.Millisecond)},
	{name: "a wait for what has ended", prepare: anEndedRun, call: waiting(time.Minute)},
	{name: "a wait below 0", want: codes.InvalidField, prepare: aRun, call: waiting(-time.Second)},
	{name: "an explanation", prepare: anEndedRun, call: func(ctx context.Context, s client.Services) (proto.Message, error) {
		return plain(s.Runs.Explain(ctx, &errandv1.ExplainRunRequest{Id: "r.web.a"}))
	}},
	{name: "the nodes", call: func(ctx context.Context, s client.Services) (proto.Message, error) {
		return plain(s.Nodes.List(ctx, &errandv1.ListNodesRequest{}))
	}},
	{name: "a node that is not there", want: codes.NodeNotFound, call: func(ctx context.Context, s client.Services) (proto.Message, error) {
		return plain(s.Nodes.Get(ctx, &errandv1.GetNodeRequest{Id: "n7"}))
	}},
	{name: "images where there are none", want: codes.NoImages, call: func(ctx context.Context, s client.Services) (proto.Message, error) {
		return plain(s.Images.List(ctx, &errandv1.ListImagesRequest{}))
	}},
	{name: "an image's end", config: func(c *api.Config) { c.Images = &shelf{} }, call: func(ctx context.Context, s client.Services) (proto.Message, error) {
		return plain(s.Images.Remove(ctx, &errandv1.RemoveImageRequest{Name: "busybox"}))
	}},
	{name: "an image in use", want: codes.ImageInUse, config: func(c *api.Config) {
		c.Images = &shelf{err: records.Errorf(records.ClassConflict, "a sandbox \xff has it")}
	}, call: func(ctx context.Context, s client.Services) (proto.Message, error) {
		return plain(s.Images.Remove(ctx, &errandv1.RemoveImageRequest{Name: "busybox"}))
	}},
}

// outcome is all that a caller sees of a call.
type outcome struct {
	message string
	class   connect.Code
	text    string
	details []string
	wire    bool
	counted []string
}

// seenOf takes a call apart. What the store numbers by itself is left out.
func seenOf(message proto.Message, err error, counted []string) outcome {
	seen := outcome{counted: counted}
	if err == nil {
		withoutRevisions(message.ProtoReflect())
		text, _ := proto.MarshalOptions{Deterministic: true}.Marshal(message)
		seen.message = string(text)
		return seen
	}
	seen.class, seen.wire, seen.text = connect.CodeOf(err), connect.IsWireError(err), err.Error()
	var made *connect.Error
	if errors.As(err, &made) {
		for _, detail := range made.Details() {
			seen.details = append(seen.details, fmt.Sprintf("%s %x", detail.Type(), detail.Bytes()))
		}
	}
	return seen
}

func withoutRevisions(m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.Name() == "revision" || field.Name() == "position":
			m.Clear(field)
		case field.Message() == nil || field.IsMap():
		case field.IsList():
			for i := range value.List().Len() {
				withoutRevisions(value.List().Get(i).Message())
			}
		default:
			withoutRevisions(value.Message())
		}
		return true
	})
}

// calls lists what a registry has counted, with procedures and codes.
func calls(t *testing.T, from prometheus.Gatherer) (counted []string) {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			counted = append(counted, fmt.Sprintf("%s %v %d", family.GetName(), metric.GetLabel(), metric.GetHistogram().GetSampleCount()))
		}
	}
	return counted
}

func TestDirectCallsMeanWhatTheyMeanOverTheWire(t *testing.T) {
	now := time.UnixMilli(20_000)
	for _, c := range wayCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ways := map[string]outcome{}
			for name, way := range map[string]func(*rig) client.Services{"over the wire": (*rig).overTheWire, "direct": (*rig).direct} {
				registry := prometheus.NewRegistry()
				r := newRig(t, func(config *api.Config) {
					config.Registerer, config.Now = registry, func() time.Time { return now }
					if c.config != nil {
						c.config(config)
					}
				})
				if c.prepare != nil {
					c.prepare(r)
				}
				message, err := c.call(r.ctx, way(r))
				switch {
				case c.want != "":
					wantCode(t, err, c.want)
				case connect.CodeOf(err) != c.class && (c.class != 0 || err != nil):
					t.Errorf("%s: %v", name, err)
				}
				if c.check != nil {
					c.check(t, r)
				}
				ways[name] = seenOf(message, err, calls(t, registry))
			}
			wire, direct := ways["over the wire"], ways["direct"]
			if c.class != 0 {
				wire.counted = nil
			}
			if !reflect.DeepEqual(wire, direct) {
				t.Errorf("over the wire:\n%+v\ndirect:\n%+v", wire, direct)
			}
		})
	}
}

func TestEveryCallThatIsAnsweredOnceIsDirect(t *testing.T) {
	away := errors.New("away")
	services := reflect.ValueOf(api.Direct(func() (*api.Server, error) { return nil, away }, client.Services{}))
	for _, file := range []protoreflect.FileDescriptor{errandv1.File_errand_v1_run_proto, errandv1.File_errand_v1_node_proto, errandv1.File_errand_v1_image_proto} {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			field := strings.TrimSuffix(string(service.Name()), "Service") + "s"
			for j := range service.Methods().Len() {
				method := service.Methods().Get(j)
				if method.IsStreamingClient() || method.IsStreamingServer() {
					continue
				}
				t.Run(string(method.FullName()), func(t *testing.T) {
					call := services.FieldByName(field).MethodByName(string(method.Name()))
					answer := call.Call([]reflect.Value{reflect.ValueOf(t.Context()), reflect.Zero(call.Type().In(1))})
					if err, _ := answer[1].Interface().(error); !errors.Is(err, away) || connect.CodeOf(err) != connect.CodeUnavailable {
						t.Errorf("got %v", err)
					}
				})
			}
		}
	}
}

// held are pulls that a test keeps.
type held []*errandv1.ImagePull

func (held) PullOf(string) (*errandv1.ImagePull, bool) { return nil, false }
func (h held) Pulls() []*errandv1.ImagePull            { return h }

func TestDirectCallsShareNoMemoryWithTheServer(t *testing.T) {
	ours := held{{Reference: "busybox"}}
	type key struct{}
	var seen []any
	r := newRig(t, func(config *api.Config) { config.Pulls = ours })
	r.store.do = func(ctx context.Context, txn records.Txn) (records.Result, error) {
		seen = append(seen, ctx.Value(key{}))
		return etcd.Do(ctx, txn)
	}
	r.commit(records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: r.keys.Node("n1"), Value: records.Encode(&recordv1.NodeSession{Uuid: "u"})}}})
	ctx := context.WithValue(r.ctx, key{}, "the caller's")
	got, err := r.direct().Nodes.Get(ctx, &errandv1.GetNodeRequest{Id: "n1"})
	if err != nil || len(got.GetPulls()) != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	got.GetPulls()[0].Reference = "changed"
	if ours[0].GetReference() != "busybox" {
		t.Error("the answer is the server's own")
	}
	if len(seen) == 0 || slices.ContainsFunc(seen, func(value any) bool { return value != nil }) {
		t.Errorf("the values of the caller's context were seen: %v", seen)
	}
}

func TestDirectCallEndsWithItsCaller(t *testing.T) {
	cases := []struct {
		name  string
		limit time.Duration
		leave bool
		want  error
		class connect.Code
	}{
		{"who leaves", time.Minute, true, context.Canceled, connect.CodeCanceled},
		{"whose time is up", 300 * time.Millisecond, false, context.DeadlineExceeded, connect.CodeDeadlineExceeded},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			entered, cause := make(chan struct{}), make(chan error, 1)
			r.store.do = func(ctx context.Context, _ records.Txn) (records.Result, error) {
				close(entered)
				<-ctx.Done()
				cause <- context.Cause(ctx)
				return records.Result{}, ctx.Err()
			}
			ctx, cancel := context.WithTimeout(t.Context(), c.limit)
			defer cancel()
			go func() {
				<-entered
				if c.leave {
					cancel()
				}
			}()
			_, err := r.direct().Nodes.List(ctx, &errandv1.ListNodesRequest{})
			if connect.CodeOf(err) != c.class {
				t.Errorf("the caller got %v", err)
			}
			if got := <-cause; !errors.Is(got, c.want) {
				t.Errorf("the call ended by %v", got)
			}
		})
	}
}

func TestStoppingWaitsForDirectCallsUnderWayAndTakesNoOthers(t *testing.T) {
	cases := []struct {
		name    string
		timeout time.Duration
		cut     bool
		want    codes.Code
	}{
		{"that end", stopTimeout, false, ""},
		{"that do not within the stop timeout", 50 * time.Millisecond, false, codes.NodeStopping},
		{"that are cut", stopTimeout, true, codes.NodeStopping},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(config *api.Config) { config.StopTimeout = c.timeout })
			entered, release := make(chan struct{}), make(chan struct{})
			r.store.do = func(ctx context.Context, txn records.Txn) (records.Result, error) {
				close(entered)
				select {
				case <-release:
					return etcd.Do(ctx, txn)
				case <-ctx.Done():
					return records.Result{}, ctx.Err()
				}
			}
			answered := make(chan error, 1)
			go func() {
				_, err := r.direct().Runs.Create(r.ctx, lifeOf("k", 0))
				answered <- err
			}()
			<-entered
			r.server.Stop()
			if _, err := r.direct().Runs.Get(r.ctx, &errandv1.GetRunRequest{Id: "r.web.a"}); !errors.Is(err, client.ErrGone) {
				t.Errorf("a later call: %v", err)
			}
			r.stop()
			select {
			case err := <-r.served:
				r.served <- err
				if c.want == "" {
					t.Error("the server has ended before its call")
				}
			case <-time.After(30 * time.Millisecond): // it waits
			}
			if c.cut {
				r.server.Cut()
			}
			if c.want == "" {
				close(release)
			}
			err := <-answered
			if c.want == "" && err != nil {
				t.Errorf("answered %v", err)
			}
			if c.want != "" {
				wantCode(t, err, c.want)
			}
			if err := <-r.served; err != nil {
				t.Error(err)
			}
			r.served <- nil
		})
	}
}

func TestStoppingAnswersADirectCreateThatWaitsWithItsRun(t *testing.T) {
	r := newRig(t)
	r.runs = r.direct().Runs
	id, answer := r.live(lifeOf("k", time.Minute))
	r.stop()
	got := <-answer
	if got.err != nil || got.response.GetRun().GetId() != id || client.Terminal(got.response.GetRun().GetStatus()) {
		t.Errorf("got %v, %v", got.response, got.err)
	}
}
