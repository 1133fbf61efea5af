package boot

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync/atomic"

	"github.com/errand-run/errand/api"
	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/messages/errand/v1/errandv1connect"
)

// Instance is the way to the node of this application. Its methods may be called from
// any goroutine.
type Instance struct {
	presence *presence
	sequence *sequence
	client   *client.Client
}

func newInstance(p *presence, s *sequence) (*Instance, error) {
	inProcess, err := client.New(client.Config{
		Address: "http://localhost", Transport: p.transport,
		Direct: func(over client.Services) client.Services { return api.Direct(p.transport.server, over) },
	})
	if err != nil {
		return nil, err
	}
	return &Instance{presence: p, sequence: s, client: inProcess}, nil
}

// Client returns the client of the node, which reaches it without a socket and needs no
// token: calls that are answered once go straight to the node, on the goroutine of the
// caller, streams through connections within the process. It may be taken at any time; before the node has started and after it has
// stopped its calls fail with client.ErrGone.
func (i *Instance) Client() *client.Client { return i.client }

// Name is the node's.
func (i *Instance) Name() string { return i.presence.parts.Settings.Name }

// Address is where the API answers, host:port; it is empty before the node has started
// and with ListenNone.
func (i *Instance) Address() string { return i.presence.state().address }

// Drivers are the sandbox drivers that are enabled, the default one first; there are
// none before the node has started.
func (i *Instance) Drivers() []string { return slices.Clone(i.presence.state().drivers) }

// Close stops the node, as the application's stop does, and a start that is under way.
// It does nothing to one that is down. It is for where fx can not: when the context of
// a start that has failed elsewhere, or of a stop, is over, fx runs no hook any more.
func (i *Instance) Close(ctx context.Context) error { return i.sequence.stop(ctx) }

// transport carries the calls of the in-process client to the API's server: the streams,
// while the others find the server by it.
type transport struct {
	current atomic.Pointer[line]
}

// line is the way to one server.
type line struct {
	to    *api.Server
	pipe  *pipe
	token string
	http  *http.Transport
	// duplex is for calls in which both sides send at the same time.
	duplex *http.Transport
}

func (t *transport) open(to *api.Server, token string) *pipe {
	l := &line{to: to, pipe: newPipe(), token: token}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return l.pipe.dial(ctx) }
	l.http = &http.Transport{DialContext: dial, MaxIdleConnsPerHost: pipesIdleMax}
	l.duplex = &http.Transport{DialContext: dial, Protocols: &http.Protocols{}}
	l.duplex.Protocols.SetUnencryptedHTTP2(true)
	t.current.Store(l)
	return l.pipe
}

// pipesIdleMax is how many connections within the process are kept for the next calls.
const pipesIdleMax = 64

func (t *transport) close() {
	if l := t.current.Swap(nil); l != nil {
		_ = l.pipe.Close()
		l.closeIdle()
	}
}

// find returns the way to the node that is up.
func (t *transport) find() (*line, error) {
	l := t.current.Load()
	if l == nil {
		return nil, fmt.Errorf("%w: it is not up", client.ErrGone)
	}
	return l, nil
}

// server is for api.Direct.
func (t *transport) server() (*api.Server, error) {
	l, err := t.find()
	if err != nil {
		return nil, err
	}
	return l.to, nil
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	l, err := t.find()
	if err != nil {
		return nil, err
	}
	if l.token != "" {
		request = request.Clone(request.Context())
		request.Header.Set("Authorization", "Bearer "+l.token)
	}
	switch request.URL.Path {
	case errandv1connect.RunServiceExecProcedure, errandv1connect.RunServiceAttachProcedure:
		return l.duplex.RoundTrip(request)
	}
	return l.http.RoundTrip(request)
}

func (l *line) closeIdle() {
	l.http.CloseIdleConnections()
	l.duplex.CloseIdleConnections()
}

// CloseIdleConnections is for http.Client.
func (t *transport) CloseIdleConnections() {
	if l := t.current.Load(); l != nil {
		l.closeIdle()
	}
}
