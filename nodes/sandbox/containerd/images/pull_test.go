package images_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/errand-run/errand/cluster/freeport"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images/imagetest"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images/registry"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images/registrytest"
)

const (
	notFound = recordv1.Reason_REASON_IMAGE_NOT_FOUND
	notNow   = recordv1.Reason_REASON_IMAGE_PULL
)

func newRegistry(t *testing.T, tls bool) *registrytest.Registry {
	t.Helper()
	r := registrytest.New(tls)
	t.Cleanup(r.Close)
	return r
}

// kinds makes images differ: containerd shares content among its namespaces.
var kinds atomic.Int64

// served adds an image whose layer has this many bytes that do not compress.
func served(t *testing.T, r *registrytest.Registry, repository string, bytes int) (string, v1.Image) {
	t.Helper()
	image := small("x:1")
	image.Files[0].Content = append(fmt.Appendf(nil, "kind %d ", kinds.Add(1)), noise(bytes)...)
	image.Config.Labels = map[string]string{"kind": fmt.Sprint(kinds.Load())}
	built, err := imagetest.Build(image)
	if err != nil {
		t.Fatal(err)
	}
	name, err := r.Add(repository, "1", built)
	if err != nil {
		t.Fatal(err)
	}
	return name, built
}

func pull(t *testing.T, store *images.Store, name string) error {
	t.Helper()
	_, err := store.Pull(shortly(t), images.PullRequest{Name: name, Run: "r.default.1"}, nil)
	return err
}

// wantStartError checks a failure's reason and words.
func wantStartError(t *testing.T, err error, reason recordv1.Reason, permanent bool, words string) sandbox.StartError {
	t.Helper()
	var start *sandbox.StartError
	if !errors.As(err, &start) {
		t.Fatalf("got %v, not a start error", err)
	}
	if start.Reason != reason || start.Permanent != permanent || !strings.Contains(start.Message, words) {
		t.Errorf("got %s permanent=%t %q; want %s permanent=%t %q", start.Reason, start.Permanent, start.Message, reason, permanent, words)
	}
	return *start
}

// onBlob is the fault of the layer of an image: its largest blob.
func onBlob(image v1.Image, fault func() *registrytest.Fault) func(*http.Request) *registrytest.Fault {
	layers, _ := image.Layers()
	digest, _ := layers[0].Digest()
	return func(r *http.Request) *registrytest.Fault {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/blobs/"+digest.String()) {
			return fault()
		}
		return nil
	}
}

func TestPullFetchesUnpacksAndNamesTheImage(t *testing.T) {
	store, client := fresh(t, images.Config{})
	r := newRegistry(t, false)
	name, _ := served(t, r, "team/tiny", 50_000)
	got, err := store.Pull(shortly(t), images.PullRequest{Name: name}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != name || got.Pulled.IsZero() || got.SizeBytes < 50_000 {
		t.Errorf("pulled %+v", got)
	}
	details, err := store.Describe(shortly(t), name)
	if err != nil || details.Config.User != "7:8" {
		t.Fatalf("described %+v, %v", details, err)
	}
	if _, err := client.SnapshotService("overlayfs").Stat(shortly(t), details.ChainID); err != nil {
		t.Errorf("not unpacked: %v", err)
	}
	left, err := client.LeasesService().List(shortly(t))
	if err != nil || len(left) != 0 {
		t.Errorf("leases are left: %v, %v", left, err)
	}
	if err := pull(t, store, name); err != nil {
		t.Fatal(err)
	}
	if n := r.Count("GET /v2/team/tiny/blobs/"); n != 2 {
		t.Errorf("the second pull fetched blobs again: %d requests, not 2", n)
	}
}

func TestPullTellsWhatStaysFromWhatMayPass(t *testing.T) {
	store, _ := fresh(t, images.Config{Registry: registry.Config{Stall: time.Second}})
	status := func(code int, header http.Header, body string) func(*registrytest.Registry, v1.Image) {
		return func(r *registrytest.Registry, _ v1.Image) {
			r.Misbehave(func(*http.Request) *registrytest.Fault {
				return &registrytest.Fault{Status: code, Header: header, Body: body}
			})
		}
	}
	manifest := func(mediaType, data string) func(*registrytest.Registry, v1.Image) {
		return func(r *registrytest.Registry, _ v1.Image) {
			r.AddManifest("a", "1", mediaType, fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(data))), []byte(data))
		}
	}
	const oci = "application/vnd.oci.image.manifest.v1+json"
	blob := `{"mediaType":"application/vnd.oci.image.config.v1+json","size":2,"digest":"sha256:` + strings.Repeat("a", 64) + `"}`
	for _, c := range []struct {
		name      string
		change    func(*registrytest.Registry, v1.Image)
		reason    recordv1.Reason
		permanent bool
		words     string
	}{
		{"manifest unknown", func(r *registrytest.Registry, _ v1.Image) {
			r.Misbehave(func(q *http.Request) *registrytest.Fault {
				q.URL.Path = "/nothing"
				return &registrytest.Fault{Status: 404}
			})
		}, notFound, true, "has no image"},
		{"a web page", manifest("text/html", "<html>"), notFound, true, `serves it as "text/html"`},
		{"a manifest that is no JSON", manifest(oci, "hello"), notFound, true, "is not JSON"},
		{"an artifact", manifest(oci, `{"config":{"mediaType":"application/vnd.cncf.helm.config.v1+json","size":2}}`), notFound, true, "is not an image: its configuration is"},
		{"layers that are none", manifest(oci, `{"config":`+blob+`,"layers":[{"mediaType":"application/x-song","size":1}]}`), notFound, true, `one of its layers is "application/x-song"`},
		{"more bytes than the node takes", manifest(oci, `{"config":`+blob+`,"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","size":99999999999999}]}`), notFound, true, "more than"},
		{"sizes that can not be", manifest(oci, `{"config":`+blob+`,"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","size":-5}]}`), notFound, true, "more than"},
		{"a huge manifest", manifest(oci, strings.Repeat(" ", 5<<20)), notFound, true, "its manifest has 5242880 bytes"},
		{"an index of other machines", manifest("application/vnd.oci.image.index.v1+json", `{"manifests":[{"mediaType":"`+oci+`","size":1,"platform":{"os":"linux","architecture":"s390x"}}]}`), notFound, true, "it has: linux/s390x"},
		{"an image of another machine", func(r *registrytest.Registry, image v1.Image) {
			file, _ := image.ConfigFile()
			file = file.DeepCopy()
			file.Architecture = "s390x"
			other, _ := mutate.ConfigFile(image, file)
			_, _ = r.Add("a", "1", other)
		}, notFound, true, "is for linux/s390x"},
		{"an index of nothing", manifest("application/vnd.oci.image.index.v1+json", `{"manifests":[]}`), notFound, true, "is an index of nothing"},
		{"layers that are others than its configuration says", func(r *registrytest.Registry, image v1.Image) {
			file, _ := image.ConfigFile()
			file = file.DeepCopy()
			file.RootFS.DiffIDs[0].Hex = strings.Repeat("1", 64)
			other, _ := mutate.ConfigFile(image, file)
			_, _ = r.Add("a", "1", other)
		}, notFound, true, "is damaged: a layer of it does not unpack to what its configuration says"},
		{"a layer that the file system can not hold", func(r *registrytest.Registry, _ v1.Image) {
			long := small("x:1")
			long.Files[0].Path = strings.Repeat("n", 300)
			other, _ := imagetest.Build(long)
			_, _ = r.Add("a", "1", other)
		}, notNow, false, "a layer can not be unpacked: file name too long: open nnn"},
		{"a hard link to nowhere", func(r *registrytest.Registry, _ v1.Image) {
			broken := small("x:1")
			broken.Files = append(broken.Files, imagetest.File{Path: "zz/link", LinkTo: "nowhere"})
			other, _ := imagetest.Build(broken)
			_, _ = r.Add("a", "1", other)
		}, notFound, true, "is damaged: a layer of it has a hard link to what is not there"},
		{"401 without a challenge", status(401, nil, ""), notNow, false, "refuses image"},
		{"403", status(403, nil, `{"errors":[{"code":"DENIED","message":"not for you"}]}`), notNow, false, "403 Forbidden: DENIED not for you"},
		{"429", status(429, http.Header{"Retry-After": {"7"}}, ""), notNow, false, "429 Too Many Requests"},
		{"500", status(500, nil, "<html>secret stack</html>"), notNow, false, "500 Internal Server Error"},
		{"503", status(503, nil, ""), notNow, false, "503 Service Unavailable"},
		{"wrong bytes", func(r *registrytest.Registry, image v1.Image) {
			r.Misbehave(onBlob(image, func() *registrytest.Fault { return &registrytest.Fault{Corrupt: true} }))
		}, notNow, false, "sends what is not the content of sha256:"},
		{"a part that is missing", func(r *registrytest.Registry, image v1.Image) {
			r.Misbehave(onBlob(image, func() *registrytest.Fault { return &registrytest.Fault{Status: 404} }))
		}, notNow, false, "answers 404"},
		{"no answer", func(r *registrytest.Registry, _ v1.Image) {
			r.AddManifest("a", "1", oci, "sha256:"+strings.Repeat("b", 64), []byte("{}"))
			r.Misbehave(func(q *http.Request) *registrytest.Fault {
				if q.Method == http.MethodGet {
					return &registrytest.Fault{Stall: true}
				}
				return nil
			})
		}, notNow, false, "no byte came from"},
		{"a stall in the middle", func(r *registrytest.Registry, image v1.Image) {
			r.Misbehave(onBlob(image, func() *registrytest.Fault { return &registrytest.Fault{Stall: true, Bytes: 20_000} }))
		}, notNow, false, "no byte came from"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRegistry(t, false)
			name, image := served(t, r, "a", 50_000)
			c.change(r, image)
			start := wantStartError(t, pull(t, store, name), c.reason, c.permanent, c.words)
			if strings.Contains(start.Message, "secret") {
				t.Errorf("the message repeats a page: %s", start.Message)
			}
			if n := len(r.Requests()); n > 12 {
				t.Errorf("the registry was asked %d times in one try: %v", n, r.Requests())
			}
			progress, ok := store.PullOf("r.default.1")
			if ok == c.permanent || ok && (progress.Phase != sandbox.PullFailed || !strings.Contains(start.Message, progress.LastError)) {
				t.Errorf("the run's last pull is %+v, %t", progress, ok)
			}
		})
	}
}

func TestPullOfWhatNobodyServes(t *testing.T) {
	store, _ := fresh(t, images.Config{})
	gone, err := freeport.Address()
	if err != nil {
		t.Fatal(err)
	}
	wantStartError(t, pull(t, store, gone+"/a:1"), notNow, false, "can not be reached: connection refused")
	wantStartError(t, pull(t, store, "registry.invalid/a:1"), notNow, false, "its name can not be resolved")
}

func TestARegistryThatAcceptsAndNeverAnswersIsGivenUp(t *testing.T) {
	store, _ := fresh(t, images.Config{Registry: registry.Config{Stall: 300 * time.Millisecond}})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	began := time.Now()
	wantStartError(t, pull(t, store, listener.Addr().String()+"/a:1"), notNow, false, "no byte came from")
	if took := time.Since(began); took > registry.StallDefault/2 {
		t.Errorf("it took %s", took)
	}
}

func TestAPullWaitsNoLongerThanItsCallerAndSaysHowFarItIs(t *testing.T) {
	store, _ := fresh(t, images.Config{})
	r := newRegistry(t, false)
	name, image := served(t, r, "a", 500_000)
	arrived := make(chan struct{}, 8)
	r.Misbehave(onBlob(image, func() *registrytest.Fault {
		arrived <- struct{}{}
		return &registrytest.Fault{Stall: true, Bytes: 200_000}
	}))
	ctx, cancel := context.WithCancel(shortly(t))
	defer cancel()
	go func() { <-arrived; cancel() }()
	_, err := store.Pull(ctx, images.PullRequest{Name: name, Run: "r"}, nil)
	wantStartError(t, err, notNow, false, "still fetching it")
	eventually(t, "the pull ends with its last caller", func() bool { return len(store.Pulls()) == 0 })
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func TestAPullThatWasBrokenOffGoesOnWhereItStopped(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault registrytest.Fault
	}{
		{"by a stall", registrytest.Fault{Stall: true, Bytes: 3 << 20}},
		{"by an error", registrytest.Fault{Cut: true, Bytes: 3 << 20}},
	} {
		t.Run(c.name, func(t *testing.T) {
			store, client := fresh(t, images.Config{Registry: registry.Config{Stall: 500 * time.Millisecond}})
			r := newRegistry(t, false)
			name, image := served(t, r, "a", 5<<20)
			var served atomic.Int32
			r.Misbehave(onBlob(image, func() *registrytest.Fault {
				if served.Add(1) == 1 {
					fault := c.fault
					return &fault
				}
				if served.Load() == 2 {
					return &registrytest.Fault{Status: 500}
				}
				return nil
			}))
			for try := 0; ; try++ {
				err := pull(t, store, name)
				if err == nil {
					break
				}
				if try > 3 {
					t.Fatal(err)
				}
				// What nothing holds is collected by containerd.
				manager := client.LeasesService()
				lease, err := manager.Create(shortly(t), leases.WithRandomID())
				if err == nil {
					err = manager.Delete(shortly(t), lease, leases.SynchronousDelete)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if r.Count("bytes=") == 0 {
				t.Errorf("nothing was resumed: %v", r.Requests())
			}
			for _, request := range r.Requests() {
				if _, from, ok := strings.Cut(request, "bytes="); ok && from < "1" {
					t.Errorf("resumed from the start: %s", request)
				}
			}
		})
	}
}

func TestWrongBytesAreNotWhatTheNextPullGoesOnFrom(t *testing.T) {
	store, _ := fresh(t, images.Config{})
	r := newRegistry(t, false)
	name, image := served(t, r, "a", 50_000)
	var bad atomic.Bool
	bad.Store(true)
	r.Misbehave(onBlob(image, func() *registrytest.Fault { return &registrytest.Fault{Corrupt: bad.Load()} }))
	wantStartError(t, pull(t, store, name), notNow, false, "is not the content")
	bad.Store(false)
	if err := pull(t, store, name); err != nil {
		t.Fatalf("the registry is sound again: %v", err)
	}
}

func TestRunsThatWantTheSameImageShareOnePull(t *testing.T) {
	store, _ := fresh(t, images.Config{})
	r := newRegistry(t, false)
	name, image := served(t, r, "a", 100_000)
	release := make(chan struct{})
	inner := onBlob(image, func() *registrytest.Fault { <-release; return nil })
	r.Misbehave(func(q *http.Request) *registrytest.Fault { return inner(q) })
	const runs = 8
	var work sync.WaitGroup
	errs := make([]error, runs)
	contexts := make([]context.Context, runs)
	cancels := make([]context.CancelFunc, runs)
	for i := range runs {
		contexts[i], cancels[i] = context.WithCancel(shortly(t))
		work.Go(func() {
			_, errs[i] = store.Pull(contexts[i], images.PullRequest{Name: name, Run: fmt.Sprint("run-", i)}, nil)
		})
	}
	eventually(t, "all wait for one pull", func() bool {
		pulls := store.Pulls()
		return len(pulls) == 1 && len(pulls[0].Runs) == runs
	})
	if of, ok := store.PullOf("run-3"); !ok || of.Reference != name {
		t.Errorf("run-3 waits for %+v, %t", of, ok)
	}
	cancels[0]() // one of them loses its patience, the others do not notice
	eventually(t, "it has left", func() bool { return len(store.Pulls()[0].Runs) == runs-1 })
	close(release)
	work.Wait()
	for i, err := range errs {
		if (err != nil) != (i == 0) {
			t.Errorf("run %d: %v", i, err)
		}
		cancels[i]()
	}
	if n := r.Count("HEAD"); n != 1 {
		t.Errorf("%d pulls, not 1: %v", n, r.Requests())
	}
}

func TestNoMoreImagesArePulledAtATimeThanConfigured(t *testing.T) {
	store, _ := fresh(t, images.Config{PullsMax: 2})
	r := newRegistry(t, false)
	release := make(chan struct{})
	let := sync.OnceFunc(func() { close(release) })
	defer let()
	var names []string
	for i := range 4 {
		name, _ := served(t, r, fmt.Sprint("a", i), 1000+i)
		names = append(names, name)
	}
	r.Misbehave(func(q *http.Request) *registrytest.Fault { <-release; return nil })
	var work sync.WaitGroup
	for _, name := range names {
		work.Go(func() {
			if err := pull(t, store, name); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "two resolve and two wait", func() bool {
		phases := map[sandbox.PullPhase]int{}
		for _, p := range store.Pulls() {
			phases[p.Phase]++
		}
		return phases[sandbox.PullResolving]+phases[sandbox.PullWaiting] == 4 && len(r.Requests()) >= 2
	})
	for deadline := time.Now().Add(300 * time.Millisecond); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if n := len(r.Requests()); n > 2 { // nothing else tells that no third one comes
			t.Fatalf("%d are pulled at a time", n)
		}
	}
	let()
	work.Wait()
}

func TestARegistryThatWantsToBeLeftAloneIs(t *testing.T) {
	store, _ := fresh(t, images.Config{})
	r := newRegistry(t, false)
	name, _ := served(t, r, "a", 1000)
	other, _ := served(t, r, "b", 1000)
	r.Misbehave(func(*http.Request) *registrytest.Fault {
		return &registrytest.Fault{Status: 429, Header: http.Header{"Retry-After": {"20"}}}
	})
	start := wantStartError(t, pull(t, store, name), notNow, false, "429")
	if start.RetryAfter != 20*time.Second {
		t.Errorf("to be asked again after %s", start.RetryAfter)
	}
	if n := len(r.Requests()); n != 1 {
		t.Errorf("asked %d times", n)
	}
	start = wantStartError(t, pull(t, store, other), notNow, false, "429")
	if start.RetryAfter <= 15*time.Second || start.RetryAfter > 20*time.Second || len(r.Requests()) != 1 {
		t.Errorf("another image: after %s, asked %d times", start.RetryAfter, len(r.Requests()))
	}
	if progress, ok := store.PullOf("r.default.1"); !ok || time.Until(progress.RetryAt) < 10*time.Second {
		t.Errorf("the run hears %+v", progress)
	}
}

func TestPullRefusesALayerThatUnpacksToFarMore(t *testing.T) {
	store, _ := fresh(t, images.Config{UnpackedBytesMin: 1 << 20})
	r := newRegistry(t, false)
	image := small("x:1")
	image.Files[0].Content = make([]byte, 8<<20+kinds.Add(1))
	built, err := imagetest.Build(image)
	if err != nil {
		t.Fatal(err)
	}
	name, err := r.Add("bomb", "1", built)
	if err != nil {
		t.Fatal(err)
	}
	wantStartError(t, pull(t, store, name), notFound, true, "unpacks to more than")
}

func TestPullOfAClosedStoreIsRefused(t *testing.T) {
	store, _ := fresh(t, images.Config{})
	store.Close()
	if err := pull(t, store, "localhost/a:1"); records.ClassOf(err) != records.ClassUnavailable {
		t.Errorf("got %v", err)
	}
}
