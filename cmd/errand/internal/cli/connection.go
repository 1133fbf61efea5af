package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/messages/errand/v1/errandv1connect"
)

// DefaultAddress is where a node on this machine answers unless it is told
// otherwise.
const DefaultAddress = "http://127.0.0.1:7400"

// defaultPort is where a node answers that is named by its host alone.
const defaultPort = "7400"

// defaultDataDir is where a node keeps its data, the API token among it.
const defaultDataDir = "/var/lib/errand"

// tokenBytesMax bounds what is read from a token file.
const tokenBytesMax = 4096

const (
	dialTimeout = 5 * time.Second
	// callTimeout bounds a call that the node answers at once.
	callTimeout = 20 * time.Second
	// waitSlice is how long the node holds one Wait call. Asking again now and
	// then finds a connection that died without a sign.
	waitSlice = 30 * time.Second
)

// connection is the API of one node. It is used by one goroutine at a time,
// apart from the calls of its service clients.
type connection struct {
	address   string
	runs      errandv1connect.RunServiceClient
	nodes     errandv1connect.NodeServiceClient
	images    errandv1connect.ImageServiceClient
	transport *http.Transport
	// tokenTrouble says why no token is sent, for when the node wants one.
	tokenTrouble string
	tokenSource  string
	patience     patience
	note         func(format string, arguments ...any)
}

// connect prepares the clients; nothing is sent yet.
func (a *app) connect() (*connection, error) {
	if a.conn != nil {
		return a.conn, nil
	}
	address, err := a.resolveAddress()
	if err != nil {
		return nil, err
	}
	c := &connection{address: address, patience: a.patience, note: a.note}
	token, err := a.resolveToken(c)
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{
		Timeout: dialTimeout,
		// A log may be silent for hours; a dead peer is to be found within half a minute.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 4},
	}
	c.transport = &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialer.DialContext,
		TLSHandshakeTimeout: dialTimeout,
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 4,
	}
	client := &http.Client{
		Transport: &bearer{token: token, next: c.transport},
		// A redirect could carry the token elsewhere; an API has no need of any.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	// Compression costs more than it saves between a CLI and its node.
	options := []connect.ClientOption{connect.WithAcceptCompression("gzip", nil, nil)}
	c.runs = errandv1connect.NewRunServiceClient(client, address, options...)
	c.nodes = errandv1connect.NewNodeServiceClient(client, address, options...)
	c.images = errandv1connect.NewImageServiceClient(client, address, options...)
	a.conn = c
	return c, nil
}

func (c *connection) close() { c.transport.CloseIdleConnections() }

// bearer adds the token to each request.
type bearer struct {
	token string
	next  http.RoundTripper
}

func (b *bearer) RoundTrip(request *http.Request) (*http.Response, error) {
	if b.token != "" {
		request = request.Clone(request.Context())
		request.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.next.RoundTrip(request)
}

func (a *app) resolveAddress() (string, error) {
	address, source := a.address, "--address"
	if address == "" {
		address, source = a.environ["ERRAND_ADDRESS"], "ERRAND_ADDRESS"
	}
	if address == "" {
		return DefaultAddress, nil
	}
	full := address
	if ip := net.ParseIP(address); ip != nil && ip.To4() == nil {
		full = "http://[" + address + "]"
	} else if !strings.Contains(full, "://") {
		full = "http://" + full
	}
	parsed, err := url.Parse(full)
	if err == nil && full != address && parsed.Port() == "" {
		// A URL's port is its scheme's; a bare host means a node's.
		parsed.Host = net.JoinHostPort(parsed.Hostname(), defaultPort)
	}
	if err != nil || parsed.Hostname() == "" || parsed.Scheme != "http" && parsed.Scheme != "https" ||
		parsed.User != nil || parsed.RawQuery != "" || parsed.Fragment != "" {
		// What was given is not repeated in full: it might hold a password.
		return "", usage("%s is not an address: give a host, host:port or a URL, as in %s", source, DefaultAddress)
	}
	return strings.TrimRight(parsed.String(), "/"), nil
}

// resolveToken finds the API token. Without --token-file a missing file is no
// error: a node in --dev mode wants none.
func (a *app) resolveToken(c *connection) (string, error) {
	if token := strings.TrimSpace(a.environ["ERRAND_TOKEN"]); token != "" {
		c.tokenSource = "ERRAND_TOKEN"
		return token, checkToken("ERRAND_TOKEN", token)
	}
	path := a.tokenFile
	if path == "" {
		dir := a.environ["ERRAND_DATA"]
		if dir == "" {
			dir = defaultDataDir
		}
		path = filepath.Join(dir, "api.token")
	}
	c.tokenSource = path
	token, err := readToken(path)
	if err == nil {
		return token, checkToken(path, token)
	}
	why := reasonOf(err)
	if a.tokenFile != "" {
		return "", usage("--token-file %s: %s", path, why)
	}
	c.tokenTrouble = fmt.Sprintf("%s: %s", path, why)
	return "", nil
}

func readToken(path string) (string, error) {
	content, err := readFile(path, tokenBytesMax)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(content))
	if token == "" {
		return "", errors.New("the file is empty")
	}
	return token, nil
}

func checkToken(source, token string) error {
	for i := range len(token) {
		if token[i] <= ' ' || token[i] >= 0x7f {
			return usage("%s does not hold a token: it has a space or an unprintable character in it", source)
		}
	}
	return nil
}

// reasonOf is the cause of a file error without the operation and path.
func reasonOf(err error) string {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err.Error()
	}
	return err.Error()
}

// call makes one call that the node answers at once.
func call[Request, Response any](
	ctx context.Context, c *connection, method func(context.Context, *Request) (*Response, error), request *Request,
) (*Response, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	response, err := method(ctx, request)
	if err != nil {
		return nil, c.explain(err)
	}
	return response, nil
}
