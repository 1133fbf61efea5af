package registry

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
)

const (
	// answerBytesMax is how much is read of an answer that refuses.
	answerBytesMax = 4 << 10
	// answerRunesMax is how much of it is shown.
	answerRunesMax = 200
)

// errStalled is the cause of the end of a request of which no byte comes.
var errStalled = errors.New("no byte came")

// transport keeps the rules of the package for every request of a session.
type transport struct {
	session  *Session
	inner    *http.Transport
	stall    time.Duration
	plain    []string
	loopback bool
	received atomic.Int64

	mu sync.Mutex
	// waiting are the requests that wait for a byte, since when.
	waiting map[*exchange]time.Time
	// refused is the last answer that asked for a credential.
	refused string
	// missing means that the registry said of a manifest that it has none.
	missing bool
}

// exchange is one request with its answer.
type exchange struct {
	of     *transport
	host   string
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

// wait begins to wait for a byte, calm ends it.
func (e *exchange) wait() {
	e.of.mu.Lock()
	defer e.of.mu.Unlock()
	if e.of.waiting == nil {
		e.of.waiting = map[*exchange]time.Time{}
	}
	e.of.waiting[e] = time.Now()
	e.timer.Reset(e.of.stall)
}

func (e *exchange) calm() {
	e.timer.Stop()
	e.of.mu.Lock()
	defer e.of.mu.Unlock()
	delete(e.of.waiting, e)
}

func (e *exchange) end() {
	e.calm()
	e.cancel(nil)
}

func (t *transport) quiet() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	var longest time.Duration
	for _, since := range t.waiting { //errand:unordered the longest is the same in every order
		longest = max(longest, time.Since(since))
	}
	return longest
}

// RoundTrip implements http.RoundTripper. What it refuses is a *Failure, which
// containerd's resolver does not ask for again.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	if err := t.check(request.URL); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(request.Context())
	e := &exchange{of: t, host: request.URL.Host, cancel: cancel}
	e.timer = time.AfterFunc(t.stall, func() { cancel(errStalled) })
	e.wait()
	response, err := t.inner.RoundTrip(request.WithContext(ctx))
	if err != nil {
		e.end()
		return nil, t.broken(request.Context(), ctx, e, err)
	}
	e.calm()
	response.Body = &body{ReadCloser: response.Body, exchange: e, ctx: ctx, asked: request.Context()}
	if failure := t.judge(request, response); failure != nil {
		_ = response.Body.Close()
		return nil, failure
	}
	return response, nil
}

// check refuses what is not encrypted, unless the registry is one that may be spoken
// with so. A registry elsewhere can not send the node to a service of its own machine.
func (t *transport) check(to *url.URL) error {
	allowed := slices.Contains(t.plain, to.Host) || t.loopback && isLoopback(to.Host)
	if to.Scheme == "https" || to.Scheme == "http" && allowed {
		return nil
	}
	return &Failure{Text: fmt.Sprintf("the registry sends to %s://%s, which is not encrypted: not followed", to.Scheme, shown(to.Host))}
}

// broken says why there was no answer.
func (t *transport) broken(asked, ctx context.Context, e *exchange, err error) error {
	switch {
	case errors.Is(context.Cause(ctx), errStalled):
		return &Failure{Text: fmt.Sprintf("no byte came from %s for %s", shown(e.host), t.stall)}
	case ended(asked, err):
		return err
	}
	var dns *net.DNSError
	var op *net.OpError
	var header tls.RecordHeaderError
	text := err.Error()
	switch {
	case errors.As(err, &dns):
		text = "its name can not be resolved: " + dns.Err
	case errors.As(err, &header):
		text = "it speaks no TLS, so what it sends is not encrypted"
	case errors.As(err, &op) && op.Err != nil:
		text = op.Err.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		text = "the connection ended"
	}
	text = strings.TrimPrefix(text, "connect: ")
	return &Failure{Text: fmt.Sprintf("%s can not be reached: %s", shown(e.host), t.session.safe(text))}
}

// judge returns why an answer is one that ends the pull, or nil for one that the
// resolver goes on with.
func (t *transport) judge(request *http.Request, response *http.Response) error {
	status, own := response.StatusCode, request.Response == nil
	registrys := own && strings.HasPrefix(request.URL.Path, "/v2/") && request.URL.Host == endpointOf(t.session.host)
	manifest := registrys && strings.Contains(request.URL.Path, "/manifests/")
	switch {
	case status < http.StatusBadRequest:
		if manifest && response.ContentLength > ManifestBytesMax {
			return &Failure{NotFound: true, Text: fmt.Sprintf("its manifest has %d bytes, more than %d", response.ContentLength, ManifestBytesMax)}
		}
		return nil
	case status == http.StatusUnauthorized && own:
		t.mu.Lock()
		t.refused = response.Status
		t.mu.Unlock()
		return nil
	case status == http.StatusNotFound && manifest:
		t.mu.Lock()
		t.missing = true
		t.mu.Unlock()
		return nil
	case status == http.StatusMethodNotAllowed && manifest && request.Method == http.MethodHead:
		return nil
	case own && !registrys && (status == http.StatusNotFound || status == http.StatusBadRequest || status == http.StatusMethodNotAllowed):
		return nil // a token service that wants to be asked in the other way
	}
	failure := &Failure{RetryAfter: retryAfter(response.Header.Get("Retry-After"), time.Now())}
	failure.Text = fmt.Sprintf("%s answers %s%s", shown(request.URL.Host), t.session.safe(response.Status), t.words(request, response))
	return failure
}

// words are what an answer says of itself. A HEAD has none: it is asked again.
func (t *transport) words(request *http.Request, response *http.Response) string {
	answer := response.Body
	if request.Method == http.MethodHead && response.StatusCode != http.StatusTooManyRequests {
		again := request.Clone(request.Context())
		again.Method = http.MethodGet
		ctx, cancel := context.WithTimeout(request.Context(), t.stall)
		defer cancel()
		got, err := t.inner.RoundTrip(again.WithContext(ctx))
		if err != nil {
			return ""
		}
		defer func() { _ = got.Body.Close() }() // it was only read
		if got.StatusCode < http.StatusBadRequest {
			return ""
		}
		answer = got.Body
	}
	data, err := io.ReadAll(io.LimitReader(answer, answerBytesMax))
	if err != nil {
		return ""
	}
	var parsed struct {
		Errors []struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"errors"`
	}
	if json.Unmarshal(data, &parsed) != nil || len(parsed.Errors) == 0 {
		return ""
	}
	return ": " + t.session.safe(strings.TrimSpace(parsed.Errors[0].Code+" "+parsed.Errors[0].Message))
}

// body counts what comes and ends with its request when nothing does.
type body struct {
	io.ReadCloser
	exchange *exchange
	ctx      context.Context //nolint:containedctx // of this one answer
	asked    context.Context //nolint:containedctx // of whoever reads it
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	b.exchange.wait()
	n, err := b.ReadCloser.Read(p)
	b.exchange.calm()
	b.exchange.of.received.Add(int64(n))
	switch {
	case err == nil, errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		return n, err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return n, err // the resolver asks for the rest
	}
	return n, b.exchange.of.broken(b.asked, b.ctx, b.exchange, err)
}

// Close implements io.Closer.
func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.exchange.end()
	return err
}

// retryAfter reads the header of that name: seconds, or a date.
func retryAfter(text string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseInt(text, 10, 32); err == nil && seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil && at.After(now) {
		return at.Sub(now)
	}
	return 0
}

// Safe makes a text of somebody else's one that may be shown.
func (s *Session) Safe(text string) string { return s.safe(text) }

// safe makes a text of somebody else's one that may be shown.
func (s *Session) safe(text string) string { return shown(s.redact.Replace(text)) }

// shown cuts a text and leaves out what is not to be printed.
func shown(text string) string {
	runes := []rune(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(text, "")))
	if len(runes) > answerRunesMax {
		return string(runes[:answerRunesMax]) + "..."
	}
	return string(runes)
}
