// Package registrytest is a registry for tests, in process and on loopback. It serves
// what it is given and misbehaves as it is told.
package registrytest

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Fault is how one request is answered in place of the truth.
type Fault struct {
	// Status, unless 0, with Header and Body, is the answer.
	Status int
	Header http.Header
	Body   string
	// Stall sends Bytes of the content, and then nothing until the request or the
	// registry ends.
	Stall bool
	// Cut sends Bytes of the content and ends the connection.
	Cut bool
	// Corrupt sends other bytes, as many as there should be.
	Corrupt bool
	Bytes   int
	// Slow waits before each 4 KiB.
	Slow time.Duration
}

// Registry serves images. Its fields are set before the first request.
type Registry struct {
	// Host is what image names begin with.
	Host string
	// Username and Password are asked for, by Basic or, with Bearer, by a token service
	// that the registry has at /token.
	Username, Password string
	Bearer             bool

	server *httptest.Server
	// ends ends what stalls.
	ends context.Context //nolint:containedctx // the registry's life
	stop context.CancelFunc

	mu       sync.Mutex
	content  map[string]content
	requests []string
	// misbehave is nil while requests are answered with the truth.
	misbehave func(*http.Request) *Fault
}

type content struct {
	mediaType, digest string
	data              []byte
}

// New returns a registry that listens. TLS makes it one with a certificate of its own,
// which CertificatePEM returns.
func New(tls bool) *Registry {
	r := &Registry{content: map[string]content{}}
	r.ends, r.stop = context.WithCancel(context.Background())
	if tls {
		r.server = httptest.NewTLSServer(r)
	} else {
		r.server = httptest.NewServer(r)
	}
	r.Host = r.server.Listener.Addr().String()
	return r
}

// Server is the server beneath.
func (r *Registry) Server() *httptest.Server { return r.server }

// Close ends the registry and every request.
func (r *Registry) Close() {
	r.stop()
	r.server.CloseClientConnections()
	r.server.Close()
}

// Add serves an image under a repository and a tag, and returns its full name.
func (r *Registry) Add(repository, tag string, image v1.Image) (string, error) {
	manifest, err := image.RawManifest()
	if err != nil {
		return "", err
	}
	mediaType, err := image.MediaType()
	if err != nil {
		return "", err
	}
	digest, err := image.Digest()
	if err != nil {
		return "", err
	}
	config, err := image.RawConfigFile()
	if err != nil {
		return "", err
	}
	configDigest, err := image.ConfigName()
	if err != nil {
		return "", err
	}
	r.AddBlob(repository, configDigest.String(), config)
	layers, err := image.Layers()
	if err != nil {
		return "", err
	}
	for _, layer := range layers {
		if err := r.addLayer(repository, layer); err != nil {
			return "", err
		}
	}
	r.AddManifest(repository, tag, string(mediaType), digest.String(), manifest)
	return r.Name(repository, tag), nil
}

func (r *Registry) addLayer(repository string, layer v1.Layer) error {
	digest, err := layer.Digest()
	if err != nil {
		return err
	}
	reader, err := layer.Compressed()
	if err != nil {
		return err
	}
	defer func() { _ = reader.Close() }() // it was only read
	var data strings.Builder
	buffer := make([]byte, 64<<10)
	for {
		n, err := reader.Read(buffer)
		data.Write(buffer[:n])
		if err != nil {
			break
		}
	}
	r.AddBlob(repository, digest.String(), []byte(data.String()))
	return nil
}

// Name is the full name of an image of this registry.
func (r *Registry) Name(repository, tag string) string {
	return fmt.Sprintf("%s/%s:%s", r.Host, repository, tag)
}

// AddManifest serves a manifest, or whatever data is, by tag and by digest.
func (r *Registry) AddManifest(repository, tag, mediaType, digest string, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, reference := range []string{tag, digest} {
		r.content["/v2/"+repository+"/manifests/"+reference] = content{mediaType, digest, data}
	}
}

// AddBlob serves a blob.
func (r *Registry) AddBlob(repository, digest string, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.content["/v2/"+repository+"/blobs/"+digest] = content{"application/octet-stream", digest, data}
}

// Requests returns what was asked for: method, path, and the Range if there was one.
func (r *Registry) Requests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.requests...)
}

// Count is how many requests hold a text.
func (r *Registry) Count(text string) int {
	count := 0
	for _, request := range r.Requests() {
		if strings.Contains(request, text) {
			count++
		}
	}
	return count
}

// Misbehave says how requests are answered from now on; a nil answer is the truth.
func (r *Registry) Misbehave(how func(*http.Request) *Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.misbehave = how
}

// ServeHTTP implements http.Handler.
func (r *Registry) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	line := request.Method + " " + request.URL.Path
	if asked := request.Header.Get("Range"); asked != "" {
		line += " " + asked
	}
	r.mu.Lock()
	r.requests = append(r.requests, line)
	found, ok := r.content[request.URL.Path]
	misbehave := r.misbehave
	r.mu.Unlock()
	var fault *Fault
	if misbehave != nil {
		fault = misbehave(request)
	}
	if fault == nil {
		fault = &Fault{Bytes: -1}
	} else if !fault.Stall && !fault.Cut {
		fault.Bytes = -1
	}
	switch {
	case fault.Status != 0:
		for key, values := range fault.Header {
			w.Header()[key] = values
		}
		w.WriteHeader(fault.Status)
		_, _ = w.Write([]byte(fault.Body))
	case request.URL.Path == "/token":
		r.token(w, request)
	case !r.allowed(w, request):
	case !ok:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`))
	default:
		r.send(w, request, found, fault)
	}
}

// send sends content, or the part that is asked for.
func (r *Registry) send(w http.ResponseWriter, request *http.Request, found content, fault *Fault) {
	data, status := found.data, http.StatusOK
	if first, ok := strings.CutPrefix(request.Header.Get("Range"), "bytes="); ok {
		from, err := strconv.Atoi(strings.TrimSuffix(first, "-"))
		if err != nil || from > len(data) {
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(data)-1, len(data)))
		data, status = data[from:], http.StatusPartialContent
	}
	if fault.Corrupt {
		data = []byte(strings.Repeat("x", len(data)))
	}
	w.Header().Set("Content-Type", found.mediaType)
	w.Header().Set("Docker-Content-Digest", found.digest)
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(status)
	if request.Method == http.MethodHead {
		return
	}
	if fault.Bytes >= 0 {
		data = data[:min(fault.Bytes, len(data))]
	}
	for len(data) > 0 {
		if fault.Slow > 0 && !r.pause(request, fault.Slow) {
			return
		}
		n := min(len(data), 4<<10)
		if _, err := w.Write(data[:n]); err != nil {
			return
		}
		data = data[n:]
		if fault.Slow > 0 || fault.Bytes >= 0 {
			w.(http.Flusher).Flush()
		}
	}
	switch {
	case fault.Stall:
		r.pause(request, time.Hour)
	case fault.Cut:
		panic(http.ErrAbortHandler)
	}
}

// pause returns false when the request or the registry has ended first.
func (r *Registry) pause(request *http.Request, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-request.Context().Done():
	case <-r.ends.Done():
	}
	return false
}

// allowed asks for a credential.
func (r *Registry) allowed(w http.ResponseWriter, request *http.Request) bool {
	if r.Username == "" {
		return true
	}
	challenge := `Basic realm="test"`
	got := request.Header.Get("Authorization")
	if r.Bearer {
		challenge = fmt.Sprintf(`Bearer realm="%s/token",service="test",scope="repository:any:pull"`, r.server.URL)
		if got == "Bearer let-me-in" {
			return true
		}
	} else if got == r.basic() {
		return true
	}
	w.Header().Set("WWW-Authenticate", challenge)
	w.WriteHeader(http.StatusUnauthorized)
	_, _ = w.Write([]byte(`{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`))
	return false
}

func (r *Registry) basic() string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(r.Username+":"+r.Password))
}

// token gives a token out, to POST with a form and to GET with Basic.
func (r *Registry) token(w http.ResponseWriter, request *http.Request) {
	form := request.PostFormValue("username") == r.Username && request.PostFormValue("password") == r.Password
	refreshed := request.PostFormValue("refresh_token") == r.Password && r.Password != ""
	if !form && !refreshed && request.Header.Get("Authorization") != r.basic() {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	_, _ = w.Write([]byte(`{"token":"let-me-in","access_token":"let-me-in","expires_in":300}`))
}
