package api_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api"
	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

const (
	createPath = "/errand.v1.RunService/Create"
	listPath   = "/errand.v1.RunService/List"
)

func TestEveryProtocolIsSpokenOnOnePort(t *testing.T) {
	r := newRig(t)
	r.put("r.web.a", nil)
	r.end("r.web.a", recordv1.Status_STATUS_SUCCEEDED, 5)
	plain := newHTTPClient(false)
	defer plain.CloseIdleConnections()
	cases := []struct {
		name    string
		client  *http.Client
		options []connect.ClientOption
	}{
		{"Connect over HTTP/2", r.http, nil},
		{"Connect over HTTP/1.1", plain, nil},
		{"gRPC", r.http, []connect.ClientOption{connect.WithGRPC()}},
		{"gRPC-Web", plain, []connect.ClientOption{connect.WithGRPCWeb()}},
		{"Connect with JSON", plain, []connect.ClientOption{connect.WithProtoJSON()}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			runs, _, _ := clients(c.client, r.url, testToken, c.options...)
			got, err := runs.Get(r.ctx, &errandv1.GetRunRequest{Id: "r.web.a"})
			if err != nil || got.GetRun().GetApp() != "web" {
				t.Fatalf("get: %v, %v", got, err)
			}
			stream, err := runs.Watch(r.ctx, &errandv1.WatchRunRequest{Id: "r.web.a"})
			if err != nil || !stream.Receive() || stream.Receive() || stream.Err() != nil {
				t.Errorf("watch: %v, %v", err, stream.Err())
			}
			_, err = runs.Get(r.ctx, &errandv1.GetRunRequest{Id: "r.web.nope"})
			wantCode(t, err, codes.RunNotFound)
			runs, _, _ = clients(c.client, r.url, "wrong", c.options...)
			_, err = runs.Get(r.ctx, &errandv1.GetRunRequest{Id: "r.web.a"})
			wantCode(t, err, codes.Unauthenticated)
			stream, err = runs.Watch(r.ctx, &errandv1.WatchRunRequest{Id: "r.web.a"})
			if err == nil {
				stream.Receive()
				err = stream.Err()
			}
			wantCode(t, err, codes.Unauthenticated)
		})
	}
	status, body := r.post(createPath, `{"app":"web","spec":{"driver":"null","timeout":"90s"}}`, withToken)
	if status != http.StatusOK || !strings.Contains(body, `"timeout":"90s"`) {
		t.Errorf("JSON: %d %s", status, body)
	}
}

func TestErrorsInJSONCarryCodeTextAndFields(t *testing.T) {
	r := newRig(t)
	status, body := r.post(createPath, `{"spec":{"driver":"null","timeout":"-5s"}}`, withToken)
	if status != http.StatusBadRequest {
		t.Errorf("status %d", status)
	}
	for _, want := range []string{`"code":"invalid_argument"`, `spec.timeout: must be above 0, is -5s`, `errand.v1.ErrorInfo`, `"code":"INVALID_FIELD"`, `"field":"spec.timeout"`} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in %s", want, body)
		}
	}
	if r.store.count.Load() != 0 {
		t.Error("the store was asked")
	}
}

func TestAnEnvironmentOf10MegabytesIsRefusedByItsName(t *testing.T) {
	r := newRig(t)
	_, err := r.runs.Create(r.ctx, &errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{
		Command: []string{"true"}, Env: map[string]string{"BIG": strings.Repeat("x", 10<<20)},
	}})
	wantCode(t, err, codes.InvalidField)
	if err == nil || !strings.Contains(err.Error(), `spec.env["BIG"]`) || len(err.Error()) > 1000 {
		t.Errorf("text: %.200s", err)
	}
	_, err = r.runs.Create(r.ctx, &errandv1.CreateRunRequest{Name: strings.Repeat("x", 25<<20)})
	if connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("a request of 25 MiB: %.200v", err)
	}
}

func TestARequestThatIsTooLargeIsRefusedWithItsCode(t *testing.T) {
	r := newRig(t)
	tooLarge := strings.Repeat("x", 25<<20) // the node reads 24 MiB
	plain := newHTTPClient(false)
	defer plain.CloseIdleConnections()
	for name, c := range map[string]struct {
		client  *http.Client
		options []connect.ClientOption
	}{
		"Connect over HTTP/2":   {r.http, nil},
		"Connect over HTTP/1.1": {plain, nil},
		"gRPC":                  {r.http, []connect.ClientOption{connect.WithGRPC()}},
		"gRPC-Web":              {plain, []connect.ClientOption{connect.WithGRPCWeb()}},
		"JSON":                  {plain, []connect.ClientOption{connect.WithProtoJSON()}},
		"packed":                {plain, []connect.ClientOption{connect.WithSendGzip()}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			runs, _, _ := clients(c.client, r.url, testToken, c.options...)
			_, err := runs.Create(ctx, &errandv1.CreateRunRequest{Name: tooLarge})
			wantCode(t, err, codes.RequestTooLarge)
			stream, err := runs.Watch(ctx, &errandv1.WatchRunRequest{Id: tooLarge})
			if err == nil {
				stream.Receive()
				err = stream.Err()
			}
			wantCode(t, err, codes.RequestTooLarge)
			if _, err := runs.List(ctx, &errandv1.ListRunsRequest{}); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

func TestReadyzSaysWhyNot(t *testing.T) {
	var mu sync.Mutex
	reasons := []string{"the store has not answered yet", "no session"}
	r := newRig(t, func(config *api.Config) {
		config.Ready = func() []string {
			mu.Lock()
			defer mu.Unlock()
			return reasons
		}
	})
	if status, body := r.get("/readyz", nil); status != http.StatusServiceUnavailable || !strings.Contains(body, "the store has not answered yet\nno session\n") {
		t.Errorf("%d %s", status, body)
	}
	mu.Lock()
	reasons = nil
	mu.Unlock()
	if status, body := r.get("/readyz", nil); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
	r.server.Stop()
	if status, body := r.get("/readyz", nil); status != http.StatusServiceUnavailable || !strings.Contains(body, "stopping") {
		t.Errorf("%d %s", status, body)
	}
}

func TestStoppingEndsStreamsAndSaysSo(t *testing.T) {
	r := newRig(t)
	r.put("r.web.a", nil)
	r.put("r.web.b", placed("n1", 1))
	watch, err := r.runs.Watch(r.ctx, &errandv1.WatchRunRequest{Id: "r.web.a"})
	if err != nil || !watch.Receive() {
		t.Fatal(err)
	}
	ends := make(chan error, 3)
	go func() {
		_, err := r.runs.Wait(r.ctx, &errandv1.WaitRunRequest{Id: "r.web.a"})
		ends <- err
	}()
	go func() {
		_, err := r.logs(&errandv1.LogsRequest{Id: "r.web.a", Follow: true})
		ends <- err
	}()
	go func() {
		_, err := r.logs(&errandv1.LogsRequest{Id: "r.web.b", Follow: true})
		ends <- err
	}()
	// Each of the four calls has read its run, and the waits what they wait for, when
	// nothing more is read: seven times in all.
	for r.store.count.Load() < 7 {
		select {
		case err := <-ends:
			t.Fatalf("ended early: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	began := time.Now()
	r.stop()
	for range 3 {
		wantCode(t, <-ends, codes.NodeStopping)
	}
	for watch.Receive() {
	}
	wantCode(t, watch.Err(), codes.NodeStopping)
	r.http.CloseIdleConnections()
	if err := <-r.served; err != nil {
		t.Error(err)
	}
	r.served <- nil
	if took := time.Since(began); took >= stopTimeout {
		t.Errorf("stopped after %s", took)
	}
}

func TestStoppingWaitsForACallUnderWayUpToItsTimeout(t *testing.T) {
	cases := []struct {
		name string
		// answers tells whether the call ends before the timeout.
		answers bool
	}{{"that ends", true}, {"that does not", false}}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, func(config *api.Config) {
				config.StopTimeout = stopTimeout
				if !c.answers {
					config.StopTimeout = 100 * time.Millisecond
				}
			})
			entered, release := make(chan struct{}), make(chan struct{})
			var once sync.Once
			r.store.do = func(ctx context.Context, txn records.Txn) (records.Result, error) {
				once.Do(func() { close(entered) })
				<-release
				return etcd.Do(ctx, txn)
			}
			answered := make(chan error, 1)
			go func() {
				_, err := r.runs.List(r.ctx, &errandv1.ListRunsRequest{App: "a", Statuses: []errandv1.Status{1}})
				answered <- err
			}()
			<-entered
			r.stop()
			if c.answers {
				close(release)
			}
			if err := <-answered; (err == nil) != c.answers {
				t.Errorf("answered %v", err)
			}
			if err := <-r.served; err != nil {
				t.Error(err)
			}
			r.served <- nil
			if !c.answers {
				close(release)
			}
		})
	}
}

func TestAPanicIsAnInternalErrorOfOneCall(t *testing.T) {
	r := newRig(t)
	r.store.do = func(context.Context, records.Txn) (records.Result, error) { panic("secret of the store") }
	_, err := r.runs.Get(r.ctx, &errandv1.GetRunRequest{Id: "r.web.a"})
	wantCode(t, err, codes.Internal)
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("text: %v", err)
	}
	r.store.do = nil
	_, err = r.runs.Get(r.ctx, &errandv1.GetRunRequest{Id: "r.web.a"})
	wantCode(t, err, codes.RunNotFound)
}
