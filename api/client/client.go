package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/messages/errand/v1/errandv1connect"
)

// AddressDefault is where a node on this machine answers unless it is told otherwise.
const AddressDefault = "http://127.0.0.1:7400"

// portDefault is where a node answers that is named by its host alone.
const portDefault = "7400"

// The bounds of single tries.
const (
	dialTimeout = 5 * time.Second
	// callTimeout bounds a call that the node answers at once.
	callTimeout = 20 * time.Second
	// waitSlice is how long the node holds one Wait call. Asking again now and then
	// finds a connection that died without a sign.
	waitSlice = 30 * time.Second
	// connectionsIdleMax is how many connections are kept for the next calls.
	connectionsIdleMax = 64
)

// ErrGone is for a Config.Transport to say that there is no node any more, and none to
// come.
var ErrGone = errors.New("the node is gone")

// Errors of New.
var (
	// ErrAddress is returned for what is not an address. What was given is not
	// repeated: it might hold a password.
	ErrAddress = errors.New("not an address: give a host, host:port (1 to 65535) or a URL, as in " + AddressDefault)
	// ErrToken is returned for a token that no request could carry.
	ErrToken = errors.New("not a token: it has a space or an unprintable character in it")
)

// Token is the API's token. Printed in any way it shows as "***".
type Token string

// String implements fmt.Stringer.
func (t Token) String() string {
	if t == "" {
		return ""
	}
	return "***"
}

// GoString implements fmt.GoStringer.
func (t Token) GoString() string { return `"` + t.String() + `"` }

// MarshalText keeps encoders from showing the token.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// check refuses what can not stand in a header.
func (t Token) check() error {
	for i := range len(t) {
		if t[i] <= ' ' || t[i] >= 0x7f {
			return ErrToken
		}
	}
	return nil
}

// Config says which node to call and how. The zero value calls a node on this machine
// that wants no token.
type Config struct {
	// Address is a host, host:port or a URL; AddressDefault by default.
	Address string
	// Token is sent with each call, unless it is empty.
	Token Token
	// Transport carries the calls, in place of one over TCP or TLS that the client
	// makes: to a unix socket, through a proxy of another kind, with certificates. An
	// error of it that is ErrGone is final: the call is not repeated.
	Transport http.RoundTripper
	// Direct, unless nil, is given the clients over Transport and returns those that are
	// used in their place: for a node in the same process, which can be asked without a
	// connection (api.Direct). What they answer is the caller's own, and their errors are
	// as over a connection. Exec goes over Transport all the same.
	Direct func(over Services) Services
	// Patience is how long calls go on trying; a field that is 0 has its default.
	Patience Patience
	// Retrying, unless nil, is told of each failed try that another follows. It is
	// called on the goroutine of the call.
	Retrying func(Retry)
}

// Client calls one node. Its methods may be called from many goroutines, which share
// its connections.
type Client struct {
	address  string
	http     *http.Client
	services Services
	// duplex is over connections on which both sides can send at the same time, and
	// duplexHTTP has them.
	duplex     errandv1connect.RunServiceClient
	duplexHTTP *http.Client
	patience   Patience
	retrying   func(Retry)
	// reached tells whether the node was ever heard, and hearing when it was last; they are
	// shared with Once.
	reached *atomic.Bool
	hearing *hearing
	// silent is how long a stream hears nothing before the node is asked whether it is
	// there; not where direct answers within this process.
	silent time.Duration
	direct bool
}

// New makes a client; nothing is sent yet. The error is ErrAddress or ErrToken.
func New(config Config) (*Client, error) {
	address, err := parseAddress(config.Address)
	if err != nil {
		return nil, fmt.Errorf("errand client: %w", err)
	}
	if err := config.Token.check(); err != nil {
		return nil, fmt.Errorf("errand client: %w", err)
	}
	transport, duplex := config.Transport, config.Transport
	if transport == nil {
		transport = newTransport()
		both := newTransport()
		both.Protocols = &http.Protocols{}
		both.Protocols.SetUnencryptedHTTP2(true)
		both.Protocols.SetHTTP2(true)
		// What was sent and not received keeps TCP from finding a peer that is gone.
		silent := config.Patience.complete().Silent
		both.HTTP2 = &http.HTTP2Config{SendPingTimeout: silent, PingTimeout: silent}
		duplex = both
	}
	over := func(transport http.RoundTripper) *http.Client {
		return &http.Client{
			Transport: &bearer{token: config.Token, next: transport},
			// A redirect could carry the token elsewhere; an API has no need of any.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	c := &Client{
		address: address, http: over(transport), duplexHTTP: over(duplex),
		patience: config.Patience.complete(), retrying: config.Retrying, reached: &atomic.Bool{},
		hearing: &hearing{}, silent: config.Patience.complete().Silent, direct: config.Direct != nil,
	}
	// Compression costs more than it saves on the short way to a node.
	options := []connect.ClientOption{connect.WithAcceptCompression("gzip", nil, nil)}
	c.duplex = errandv1connect.NewRunServiceClient(c.duplexHTTP, address, options...)
	c.services = Services{
		Runs:   errandv1connect.NewRunServiceClient(c.http, address, options...),
		Nodes:  errandv1connect.NewNodeServiceClient(c.http, address, options...),
		Images: errandv1connect.NewImageServiceClient(c.http, address, options...),
	}
	if config.Direct != nil {
		c.services = config.Direct(c.services)
	}
	return c, nil
}

// Address is the URL that the client calls.
func (c *Client) Address() string { return c.address }

// String names the client by its address.
func (c *Client) String() string { return "errand at " + c.address }

// Once returns a client that tries each call once, over the same connections.
func (c *Client) Once() *Client {
	once := *c
	once.patience = Patience{}
	return &once
}

// Close closes the connections that are not in use. Calls under way go on.
func (c *Client) Close() {
	c.http.CloseIdleConnections()
	c.duplexHTTP.CloseIdleConnections()
}

func newTransport() *http.Transport {
	dialer := &net.Dialer{
		Timeout: dialTimeout,
		// A log may be silent for hours; a dead peer is to be found within half a minute.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 4},
	}
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialer.DialContext,
		TLSHandshakeTimeout: dialTimeout,
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: connectionsIdleMax,
		IdleConnTimeout:     time.Minute,
	}
}

// bearer adds the token to each request.
type bearer struct {
	token Token
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (b *bearer) RoundTrip(request *http.Request) (*http.Response, error) {
	if b.token != "" {
		request = request.Clone(request.Context())
		request.Header.Set("Authorization", "Bearer "+string(b.token))
	}
	return b.next.RoundTrip(request)
}

// CloseIdleConnections is for http.Client.
func (b *bearer) CloseIdleConnections() {
	if closer, ok := b.next.(interface{ CloseIdleConnections() }); ok {
		closer.CloseIdleConnections()
	}
}

// parseAddress returns the URL without a slash at its end. A URL's port is its
// scheme's; a bare host means a node's.
func parseAddress(address string) (string, error) {
	if address == "" {
		return AddressDefault, nil
	}
	full := address
	if ip := net.ParseIP(address); ip != nil && ip.To4() == nil {
		full = "http://[" + address + "]"
	} else if !strings.Contains(full, "://") {
		full = "http://" + full
	}
	parsed, err := url.Parse(full)
	if err == nil && full != address && parsed.Port() == "" {
		parsed.Host = net.JoinHostPort(parsed.Hostname(), portDefault)
	}
	if err != nil || parsed.Hostname() == "" || parsed.Scheme != "http" && parsed.Scheme != "https" || !validPort(parsed.Port()) ||
		parsed.User != nil || parsed.RawQuery != "" || parsed.Fragment != "" {
		return "", ErrAddress
	}
	return strings.TrimRight(parsed.String(), "/"), nil
}

// validPort takes the ports that there are, and none where the scheme has its own.
func validPort(text string) bool {
	port, err := strconv.ParseUint(text, 10, 16)
	return text == "" || err == nil && port > 0
}

// call makes a call that the node answers at once, as often as it takes.
func call[Request, Response any](
	ctx context.Context, c *Client, op string, method func(context.Context, *Request) (*Response, error), request *Request,
) (*Response, error) {
	var response *Response
	err := c.trial(op).persist(ctx, callTimeout, func(ctx context.Context) (err error) {
		response, err = method(ctx, request)
		return err
	})
	if err != nil {
		return nil, err
	}
	return response, nil
}
