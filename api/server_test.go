package api_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/errand-run/errand/api"
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
			wantCode(t, err, api.CodeRunNotFound)
			runs, _, _ = clients(c.client, r.url, "wrong", c.options...)
			_, err = runs.Get(r.ctx, &errandv1.GetRunRequest{Id: "r.web.a"})
			wantCode(t, err, api.CodeUnauthenticated)
			stream, err = runs.Watch(r.ctx, &errandv1.WatchRunRequest{Id: "r.web.a"})
			if err == nil {
				stream.Receive()
				err = stream.Err()
			}
			wantCode(t, err, api.CodeUnauthenticated)
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
	wantCode(t, err, api.CodeInvalidField)
	if err == nil || !strings.Contains(err.Error(), `spec.env["BIG"]`) || len(err.Error()) > 1000 {
		t.Errorf("text: %.200s", err)
	}
	_, err = r.runs.Create(r.ctx, &errandv1.CreateRunRequest{Name: strings.Repeat("x", 25<<20)})
	if connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("a request of 25 MiB: %.200v", err)
	}
}

func TestTheTokenIsNeeded(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := newRig(t, func(config *api.Config) { config.Gatherer, config.Registerer = registry, registry })
	authorize := func(value string) func(*http.Request) {
		return func(request *http.Request) { request.Header.Set("Authorization", value) }
	}
	cases := []struct {
		name   string
		change func(*http.Request)
		want   int
	}{
		{"none", nil, http.StatusUnauthorized},
		{"wrong", authorize("Bearer wrong"), http.StatusUnauthorized},
		{"empty", authorize("Bearer "), http.StatusUnauthorized},
		{"the beginning of it", authorize("Bearer " + testToken[:5]), http.StatusUnauthorized},
		{"of another scheme", authorize("Basic " + testToken), http.StatusUnauthorized},
		{"without a scheme", authorize(testToken), http.StatusUnauthorized},
		{"right", withToken, http.StatusOK},
		{"right, scheme in lower case", authorize("bearer " + testToken), http.StatusOK},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if status, body := r.post(listPath, "{}", c.change); status != c.want {
				t.Errorf("list: %d %s", status, body)
			}
			for _, path := range []string{"/metrics", "/debug/pprof/cmdline"} {
				if status, body := r.get(path, c.change); status != c.want {
					t.Errorf("%s: %d %s", path, status, body)
				}
			}
			for _, path := range []string{"/healthz", "/readyz"} {
				if status, body := r.get(path, c.change); status != http.StatusOK {
					t.Errorf("%s: %d %s", path, status, body)
				}
			}
		})
	}
	if _, body := r.get("/metrics", withToken); !strings.Contains(body, `errand_api_call_duration_seconds_count{code="ok",procedure="/errand.v1.RunService/List"} 2`) {
		t.Errorf("metrics: %s", body)
	}
	if status, _ := r.get("/elsewhere", withToken); status != http.StatusNotFound {
		t.Errorf("unknown path: %d", status)
	}
}

func TestAServerOutsideDevNeedsAToken(t *testing.T) {
	r := newRig(t)
	_, err := api.New(api.Config{Keys: r.keys, Store: r.store, Router: r.router, Logs: unreadable{}, Rand: cryptoRand{}})
	if err == nil || !strings.Contains(err.Error(), "token") {
		t.Errorf("got %v", err)
	}
}

func TestBrowsersOfOtherOriginsAreRefusedInDevToo(t *testing.T) {
	r := newRig(t, func(config *api.Config) { config.Token, config.Dev, config.Hosts = "", true, []string{"node.example"} })
	header := func(key, value string) func(*http.Request) {
		return func(request *http.Request) { request.Header.Set(key, value) }
	}
	host := func(value string) func(*http.Request) {
		return func(request *http.Request) { request.Host = value }
	}
	cases := []struct {
		name   string
		change func(*http.Request)
		want   int
	}{
		{"no browser", nil, http.StatusOK},
		{"own origin", header("Origin", r.url), http.StatusOK},
		{"own origin, other port", header("Origin", "http://127.0.0.1:1"), http.StatusForbidden},
		{"foreign origin", header("Origin", "https://evil.example"), http.StatusForbidden},
		{"opaque origin", header("Origin", "null"), http.StatusForbidden},
		{"cross-site fetch", header("Sec-Fetch-Site", "cross-site"), http.StatusForbidden},
		{"same-site fetch", header("Sec-Fetch-Site", "same-site"), http.StatusForbidden},
		{"own page", header("Sec-Fetch-Site", "same-origin"), http.StatusOK},
		{"a name that was pointed here", host("evil.example:7400"), http.StatusForbidden},
		{"localhost", host("localhost:7400"), http.StatusOK},
		{"localhost of another", host("localhost.evil.example"), http.StatusForbidden},
		{"an IPv6 address", host("[::1]:7400"), http.StatusOK},
		{"an IPv6 address without a port", host("[::1]"), http.StatusOK},
		{"a name that was configured", host("Node.Example:7400"), http.StatusOK},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if status, body := r.post(listPath, "{}", c.change); status != c.want {
				t.Errorf("list: %d %s", status, body)
			}
			if status, body := r.get("/debug/pprof/cmdline", c.change); status != c.want {
				t.Errorf("profile: %d %s", status, body)
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
	// Each of the calls has read its run before it waits.
	for r.store.count.Load() < 4 {
		select {
		case err := <-ends:
			t.Fatalf("ended early: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	began := time.Now()
	r.stop()
	for range 3 {
		wantCode(t, <-ends, api.CodeNodeStopping)
	}
	for watch.Receive() {
	}
	wantCode(t, watch.Err(), api.CodeNodeStopping)
	r.http.CloseIdleConnections()
	if err := <-r.served; err != nil {
		t.Error(err)
	}
	r.served <- nil
	if took := time.Since(began); took > 4*time.Second {
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
				config.StopTimeout = 10 * time.Second
				if !c.answers {
					config.StopTimeout = 100 * time.Millisecond
				}
			})
			entered, release := make(chan struct{}), make(chan struct{})
			r.store.do = func(ctx context.Context, txn records.Txn) (records.Result, error) {
				close(entered)
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
	wantCode(t, err, api.CodeInternal)
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("text: %v", err)
	}
	r.store.do = nil
	_, err = r.runs.Get(r.ctx, &errandv1.GetRunRequest{Id: "r.web.a"})
	wantCode(t, err, api.CodeRunNotFound)
}

func TestLoadOrCreateToken(t *testing.T) {
	t.Run("makes one of 32 random bytes that only the owner reads", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "api.token")
		token, err := api.LoadOrCreateToken(path)
		if err != nil || len(token) != 52 {
			t.Fatalf("token of %d characters, %v", len(token), err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
		again, err := api.LoadOrCreateToken(path)
		if err != nil || again != token {
			t.Errorf("another token the second time, %v", err)
		}
		if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
			t.Errorf("left behind: %v", entries)
		}
	})
	t.Run("gives one token to all who ask at once", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "api.token")
		tokens := make(chan string, 16)
		var group sync.WaitGroup
		for range 16 {
			group.Go(func() {
				token, err := api.LoadOrCreateToken(path)
				if err != nil {
					t.Error(err)
				}
				tokens <- token
			})
		}
		group.Wait()
		close(tokens)
		first := <-tokens
		for token := range tokens {
			if token != first {
				t.Error("two tokens")
			}
		}
	})
	refused := []struct {
		name, content string
		mode          os.FileMode
	}{
		{"that others may read", strings.Repeat("x", 40), 0o644},
		{"that is empty", "\n", 0o600},
		{"that is too short", "short\n", 0o600},
		{"that is too large", strings.Repeat("x", 5000), 0o600},
	}
	for _, c := range refused {
		t.Run("refuses a file "+c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "api.token")
			if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, c.mode); err != nil {
				t.Fatal(err)
			}
			if token, err := api.LoadOrCreateToken(path); err == nil || token != "" || !strings.Contains(err.Error(), path) {
				t.Errorf("got %q, %v", token, err)
			}
		})
	}
	t.Run("names the directory that is not there", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "no", "api.token")
		if _, err := api.LoadOrCreateToken(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("got %v", err)
		}
	})
}

func TestNodes(t *testing.T) {
	r := newRig(t)
	put := func(key string, value []byte) {
		r.commit(records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: key, Value: value}}})
	}
	session := records.Encode(&recordv1.NodeSession{Uuid: "u", Drivers: []string{"process", "null"}, SandboxesMax: 8, RegisteredAt: 1000, BootId: "b", Version: "v1"})
	put(r.keys.Node("n1"), session)
	put(r.keys.Node("n10"), session)
	put(r.keys.Drain("n10"), nil)
	for _, id := range []string{"r.web.a", "r.web.b"} {
		put(r.keys.Assignment("n1", id), nil)
	}
	put(r.keys.Assignment("n10", "r.web.c"), nil)
	list, err := r.nodes.List(r.ctx, &errandv1.ListNodesRequest{})
	if err != nil || len(list.GetNodes()) != 2 {
		t.Fatalf("list: %v, %v", list, err)
	}
	if n := list.GetNodes()[0]; n.GetId() != "n1" || n.GetDraining() || n.GetSandboxes() != 2 || n.GetVersion() != "v1" || len(n.GetDrivers()) != 2 {
		t.Errorf("n1: %v", n)
	}
	got, err := r.nodes.Get(r.ctx, &errandv1.GetNodeRequest{Id: "n10"})
	if err != nil || !got.GetNode().GetDraining() || got.GetNode().GetSandboxes() != 1 || got.GetNode().GetRegisteredAt().AsTime().UnixMilli() != 1000 {
		t.Errorf("n10: %v, %v", got, err)
	}
	_, err = r.nodes.Get(r.ctx, &errandv1.GetNodeRequest{Id: "n2"})
	wantCode(t, err, api.CodeNodeNotFound)
	_, err = r.nodes.Get(r.ctx, &errandv1.GetNodeRequest{Id: "../n1"})
	wantCode(t, err, api.CodeInvalidField)
}

// shelf keeps images in memory.
type shelf struct {
	name string
	data []byte
	err  error
}

func (s *shelf) Import(_ context.Context, name string, archive io.Reader) ([]api.Image, error) {
	var err error
	s.name = name
	if s.data, err = io.ReadAll(archive); err != nil {
		return nil, err
	}
	return []api.Image{{Name: "docker.io/library/x:latest", Digest: "sha256:1", SizeBytes: int64(len(s.data)), ImportedAt: time.UnixMilli(1000)}}, s.err
}

func (s *shelf) List(context.Context) ([]api.Image, error) { return nil, s.err }

func TestImages(t *testing.T) {
	stored := &shelf{}
	r := newRig(t, func(config *api.Config) { config.Images = stored })
	upload := func(pieces ...*errandv1.ImportImageRequest) (*errandv1.ImportImageResponse, error) {
		t.Helper()
		stream, err := r.images.Import(r.ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, piece := range pieces {
			if err := stream.Send(piece); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
		}
		return stream.CloseAndReceive()
	}
	t.Run("are the bytes of all messages in order", func(t *testing.T) {
		piece := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		response, err := upload(&errandv1.ImportImageRequest{Name: "x"}, &errandv1.ImportImageRequest{Data: piece}, &errandv1.ImportImageRequest{}, &errandv1.ImportImageRequest{Data: []byte("end")})
		if err != nil || stored.name != "x" || !bytes.Equal(stored.data, append(piece, "end"...)) {
			t.Fatalf("got %v, %v", response, err)
		}
		if got := response.GetImages()[0]; got.GetSizeBytes() != int64(len(piece)+3) || got.GetImportedAt().AsTime().UnixMilli() != 1000 {
			t.Errorf("image %v", got)
		}
	})
	t.Run("under a bad name are refused", func(t *testing.T) {
		_, err := upload(&errandv1.ImportImageRequest{Name: "Not A Name"})
		wantCode(t, err, api.CodeInvalidField)
	})
	t.Run("in a message that is too large are refused", func(t *testing.T) {
		_, err := upload(&errandv1.ImportImageRequest{Data: make([]byte, 3<<20)})
		if connect.CodeOf(err) != connect.CodeResourceExhausted {
			t.Errorf("got %v", err)
		}
	})
	t.Run("that are none say so", func(t *testing.T) {
		stored.err = records.Errorf(records.ClassInvalid, "unexpected EOF")
		_, err := upload(&errandv1.ImportImageRequest{Data: []byte("x")})
		wantCode(t, err, api.CodeImageInvalid)
	})
	t.Run("are not there without containerd", func(t *testing.T) {
		r := newRig(t)
		_, err := r.images.List(r.ctx, &errandv1.ListImagesRequest{})
		wantCode(t, err, api.CodeNoImages)
		stream, err := r.images.Import(r.ctx)
		if err != nil {
			t.Fatal(err)
		}
		_, err = stream.CloseAndReceive()
		wantCode(t, err, api.CodeNoImages)
	})
}
