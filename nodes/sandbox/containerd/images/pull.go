package images

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	"go.uber.org/zap"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images/authfile"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images/registry"
	"github.com/errand-run/errand/nodes/sandbox/containerd/quiet"
)

const (
	// PullsMax is how many images are pulled at a time where Config sets nothing else.
	PullsMax = 3
	// RetryAfterMax is how long a registry is left alone at its own wish.
	RetryAfterMax = 30 * time.Second
	// progressEvery is how often whoever waits for a pull is told how far it is.
	progressEvery = time.Second
	// failedKept is how long it is known why a run's last pull failed, failedMax of how
	// many runs.
	failedKept = 5 * time.Minute
	failedMax  = 1024
)

// PullRequest asks for an image.
type PullRequest struct {
	// Name is the image's, normalised.
	Name string
	// Run waits for it; empty for a person.
	Run string
	// Credential takes the place of the configured one; nil for that.
	Credential *authfile.Credential
}

// puller shares the pulls of a store among those who want them.
type puller struct {
	store *Store
	open  context.Context //nolint:containedctx // the life of its goroutines
	close context.CancelFunc
	turns chan struct{}
	work  sync.WaitGroup

	mu      sync.Mutex
	flights map[string]*flight
	// failed is the last failure of each run.
	failed map[string]failed
	// left are the registries that want to be left alone, until when and why.
	left map[string]leftAlone
}

type failed struct {
	progress sandbox.PullProgress
	at       time.Time
}

type leftAlone struct {
	until time.Time
	why   string
}

func newPuller(store *Store, most int) *puller {
	p := &puller{
		store: store, turns: make(chan struct{}, most),
		flights: map[string]*flight{}, failed: map[string]failed{}, left: map[string]leftAlone{},
	}
	p.open, p.close = context.WithCancel(quiet.Context(context.Background()))
	return p
}

// flight is one pull under way. Its waiters share its outcome; the last one that leaves
// ends it.
type flight struct {
	of     *puller
	key    string
	name   string
	host   string
	given  *authfile.Credential
	cancel context.CancelFunc
	meter  meter

	// runs counts the waiters by run; guarded by the puller's lock.
	runs    map[string]int
	waiters int

	done  chan struct{}
	image Image
	err   error
}

// keyOf tells pulls apart that must not share an outcome: one with a credential of its
// own is not another's. The credential is not part of the key, only its hash.
func keyOf(request PullRequest) string {
	if request.Credential == nil {
		return request.Name
	}
	c := request.Credential
	sum := sha256.Sum256([]byte(strings.Join([]string{c.Username, c.Password, c.IdentityToken}, "\x00")))
	return request.Name + " " + hex.EncodeToString(sum[:])
}

// hostOf returns the registry of a normalised name.
func hostOf(name string) (string, error) {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return "", fmt.Errorf("%w: %q", ErrName, name)
	}
	return reference.Domain(named), nil
}

// Pull fetches an image, or what the store lacks of it, unpacks it and gives it its
// name. Callers that want the same image share one pull, which ends with the last of
// them; what it has fetched by then is kept for a day and not fetched again. progress,
// unless nil, is called now and then from the caller's goroutine.
//
// The error is a *sandbox.StartError in the contract's words, or one with a class when
// it is the node's own trouble. When the context ends, it says how far the pull is.
func (s *Store) Pull(ctx context.Context, request PullRequest, progress func(sandbox.PullProgress)) (Image, error) {
	host, err := hostOf(request.Name)
	if err != nil {
		return Image{}, sandbox.Permanentf(reasonNotFound, "%s", err)
	}
	f, err := s.puller.join(request, host)
	if err != nil {
		return Image{}, err
	}
	defer s.puller.leave(f, request.Run)
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	for {
		select {
		case <-f.done:
			return f.image, f.err
		case <-ctx.Done():
			return Image{}, f.brokenOff()
		case <-ticker.C:
			if progress != nil {
				progress(f.progress())
			}
		}
	}
}

// join returns the pull of what a request wants, begun if there is none.
func (p *puller) join(request PullRequest, host string) (*flight, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open.Err() != nil {
		return nil, records.Errorf(records.ClassUnavailable, "pull %s: the node is stopping", request.Name)
	}
	key := keyOf(request)
	f := p.flights[key]
	if f == nil {
		if left, ok := p.left[host]; ok && time.Until(left.until) > 0 {
			return nil, p.transient(request.Run, request.Name, &registry.Failure{Text: left.why, RetryAfter: time.Until(left.until)})
		}
		f = &flight{of: p, key: key, name: request.Name, host: host, given: request.Credential, runs: map[string]int{}, done: make(chan struct{})}
		f.meter.begin(time.Now())
		var ctx context.Context
		ctx, f.cancel = context.WithCancel(p.open)
		p.flights[key] = f
		p.work.Go(func() { f.fly(ctx) })
	}
	f.waiters++
	if request.Run != "" {
		f.runs[request.Run]++
		delete(p.failed, request.Run)
	}
	return f, nil
}

// leave ends a pull that nobody wants any more.
func (p *puller) leave(f *flight, run string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f.waiters--
	if run != "" {
		if f.runs[run]--; f.runs[run] == 0 {
			delete(f.runs, run)
		}
	}
	if f.waiters == 0 {
		f.cancel()
		if p.flights[f.key] == f {
			delete(p.flights, f.key)
		}
	}
}

// fly pulls when it is its turn.
func (f *flight) fly(ctx context.Context) {
	defer close(f.done)
	defer f.cancel()
	select {
	case f.of.turns <- struct{}{}:
		defer func() { <-f.of.turns }()
		f.image, f.err = f.try(ctx)
	case <-ctx.Done():
		f.err = ctx.Err()
	}
	f.of.land(f)
}

// land ends the flight before its outcome is told, so that who asks next begins another.
func (p *puller) land(f *flight) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.flights[f.key] == f {
		delete(p.flights, f.key)
	}
	var failure *registry.Failure
	outcome := "pulled"
	switch {
	case f.err == nil:
	case errors.As(f.err, &failure) && failure.NotFound:
		f.err, outcome = sandbox.Permanentf(reasonNotFound, "%s", failure.Text), "not_found"
	case errors.As(f.err, &failure):
		if failure.RetryAfter = min(failure.RetryAfter, RetryAfterMax); failure.RetryAfter > 0 {
			p.left[f.host] = leftAlone{until: time.Now().Add(failure.RetryAfter), why: failure.Text}
		}
		f.err, outcome = p.transient("", f.name, failure), "failed"
		for run := range f.runs { //errand:unordered each run has an entry of its own
			p.remember(run, f.progressLocked(), failure)
		}
	case errors.Is(f.err, context.Canceled):
		outcome = "canceled"
	default:
		outcome = "failed"
	}
	p.store.config.Observe.pulled(outcome, f.meter.received())
	if f.err != nil && outcome != "canceled" {
		p.store.config.Log.Info("image not pulled", zap.String("image", f.name), zap.String("because", f.err.Error()))
	} else if f.err == nil {
		p.store.config.Log.Info("image pulled", zap.String("image", f.name), zap.Int64("bytes", f.meter.received()), zap.Duration("took", f.meter.lasted(time.Now())))
	}
	for host, left := range p.left { //errand:unordered each stands for itself
		if time.Until(left.until) <= 0 {
			delete(p.left, host)
		}
	}
}

// transient is the error of what may pass, and remembers it for the run that waits.
func (p *puller) transient(run, name string, failure *registry.Failure) error {
	if run != "" {
		p.remember(run, sandbox.PullProgress{Reference: name, Since: time.Now()}, failure)
	}
	return &sandbox.StartError{Reason: reasonPull, Message: "pull image " + name + ": " + failure.Text, RetryAfter: failure.RetryAfter}
}

func (p *puller) remember(run string, progress sandbox.PullProgress, failure *registry.Failure) {
	now := time.Now()
	for other, old := range p.failed { //errand:unordered each stands for itself
		if now.Sub(old.at) > failedKept {
			delete(p.failed, other)
		}
	}
	if len(p.failed) >= failedMax {
		return
	}
	progress.Phase, progress.LastError, progress.Rate, progress.Runs = sandbox.PullFailed, failure.Text, 0, []string{run}
	if failure.RetryAfter > 0 {
		progress.RetryAt = now.Add(failure.RetryAfter)
	}
	p.failed[run] = failed{progress: progress, at: now}
}

// brokenOff says how far a pull is that somebody does not wait for any longer.
func (f *flight) brokenOff() error {
	progress := f.progress()
	text := "pull image " + f.name + ": "
	switch {
	case progress.Phase == sandbox.PullWaiting:
		text += "still waiting for its turn"
	case progress.Phase == sandbox.PullUnpacking:
		text += "still unpacking it"
	case progress.Total > 0:
		text += fmt.Sprintf("still fetching it, %s of %s are there", records.SizeText(progress.Bytes), records.SizeText(progress.Total))
	default:
		text += "still asking registry " + f.host
	}
	if quiet := f.meter.quiet(); quiet >= progressEvery {
		text += fmt.Sprintf("; no byte has come for %s", quiet.Round(time.Second))
	}
	return &sandbox.StartError{Reason: reasonPull, Message: text}
}

func (f *flight) progress() sandbox.PullProgress {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	return f.progressLocked()
}

func (f *flight) progressLocked() sandbox.PullProgress {
	progress := f.meter.read(time.Now())
	progress.Reference = f.name
	for run := range f.runs { //errand:unordered sorted below
		progress.Runs = append(progress.Runs, run)
	}
	slices.Sort(progress.Runs)
	return progress
}

// PullOf implements sandbox.Pulls.
func (s *Store) PullOf(run string) (sandbox.PullProgress, bool) {
	p := s.puller
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.flights { //errand:unordered a run waits for one image
		if f.runs[run] > 0 {
			return f.progressLocked(), true
		}
	}
	last, ok := p.failed[run]
	return last.progress, ok
}

// Pulls implements sandbox.Pulls.
func (s *Store) Pulls() []sandbox.PullProgress {
	p := s.puller
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]sandbox.PullProgress, 0, len(p.flights))
	for _, f := range p.flights { //errand:unordered sorted below
		all = append(all, f.progressLocked())
	}
	slices.SortFunc(all, func(a, b sandbox.PullProgress) int { return cmp.Compare(a.Reference, b.Reference) })
	return all
}

// Close ends the pulls under way and waits for them.
func (s *Store) Close() {
	s.puller.mu.Lock()
	s.puller.close()
	s.puller.mu.Unlock()
	s.puller.work.Wait()
}
