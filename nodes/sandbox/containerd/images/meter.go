package images

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images/registry"
)

const (
	// rateOver is over how long a rate is taken, in samples of rateEvery.
	rateOver  = 5 * time.Second
	rateEvery = 500 * time.Millisecond
)

// meter is how far one pull is. Its methods may be called from any goroutine.
type meter struct {
	mu      sync.Mutex
	phase   sandbox.PullPhase
	since   time.Time
	session *registry.Session
	total   int64
	// there is how much of each blob is there.
	there          map[digest.Digest]int64
	layers, landed int
	samples        []sample
}

type sample struct {
	at    time.Time
	bytes int64
}

func (m *meter) begin(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.phase, m.since, m.there = sandbox.PullWaiting, now, map[digest.Digest]int64{}
}

func (m *meter) enter(phase sandbox.PullPhase) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.phase = phase
}

func (m *meter) over(session *registry.Session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.session = session
}

// expect adds what has to be fetched.
func (m *meter) expect(bytes int64, layers int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.total += bytes
	m.layers += layers
}

// at notes how much of a blob is there.
func (m *meter) at(blob digest.Digest, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.there[blob] = bytes
	m.sample(time.Now())
}

func (m *meter) landedLayer() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.landed++
}

// sample remembers how much has come in, now and then.
func (m *meter) sample(now time.Time) {
	if last := len(m.samples) - 1; last >= 0 && now.Sub(m.samples[last].at) < rateEvery {
		return
	}
	m.samples = append(m.samples, sample{now, m.receivedLocked()})
	for len(m.samples) > 1 && now.Sub(m.samples[1].at) > rateOver {
		m.samples = m.samples[1:]
	}
}

func (m *meter) received() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.receivedLocked()
}

func (m *meter) receivedLocked() int64 {
	if m.session == nil {
		return 0
	}
	return m.session.Received()
}

func (m *meter) quiet() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.session == nil {
		return 0
	}
	return m.session.Quiet()
}

func (m *meter) lasted(now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return now.Sub(m.since)
}

func (m *meter) read(now time.Time) sandbox.PullProgress {
	m.mu.Lock()
	defer m.mu.Unlock()
	progress := sandbox.PullProgress{Phase: m.phase, Since: m.since, Total: m.total, Layers: m.layers, LayersDone: m.landed}
	for _, bytes := range m.there { //errand:unordered a sum
		progress.Bytes += bytes
	}
	progress.Bytes = min(progress.Bytes, max(progress.Total, 0))
	if m.phase == sandbox.PullFetching && len(m.samples) > 0 {
		first := m.samples[0]
		if over := now.Sub(first.at); over > rateEvery {
			progress.Rate = int64(float64(m.receivedLocked()-first.bytes) / over.Seconds())
		}
	}
	return progress
}

// metered is a fetcher whose progress shows.
type metered struct {
	remotes.Fetcher
	meter *meter
}

// Fetch implements remotes.Fetcher. What a manifest says of other places for its blobs
// is passed over: those are fetched by a client without the rules of package registry.
func (f metered) Fetch(ctx context.Context, blob ocispec.Descriptor) (io.ReadCloser, error) {
	blob.URLs = nil
	reader, err := f.Fetcher.Fetch(ctx, blob)
	if err != nil {
		return nil, err
	}
	return &meteredReader{ReadCloser: reader, blob: blob.Digest, meter: f.meter}, nil
}

type meteredReader struct {
	io.ReadCloser
	blob   digest.Digest
	offset int64
	meter  *meter
}

// Read implements io.Reader.
func (r *meteredReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.offset += int64(n)
	r.meter.at(r.blob, r.offset)
	return n, err
}

// Seek implements io.Seeker: what was fetched before is not fetched again.
func (r *meteredReader) Seek(offset int64, whence int) (int64, error) {
	seeker, ok := r.ReadCloser.(io.Seeker)
	if !ok {
		return 0, errors.New("the content can only be read from its start")
	}
	at, err := seeker.Seek(offset, whence)
	if err == nil {
		r.offset = at
	}
	return at, err
}
