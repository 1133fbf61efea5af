// Package registry is how a node speaks to registries: by containerd's resolver, over a
// transport of its own that keeps the rules.
//
//   - What is not encrypted is spoken with loopback and with the registries that the
//     node's configuration lists, and never because somebody on the way says so.
//   - A registry of which no byte comes for 30 s is given up for now.
//   - Its answers are told apart: what stays as it is (no such image) from what may
//     pass. It is not asked again in a hurry, and what it says of when to come again
//     is handed on.
//   - A credential goes to the registry that it is for, and into no text.
package registry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"

	"github.com/errand-run/errand/nodes/sandbox/containerd/images/authfile"
)

const (
	// StallDefault is how long no byte may come.
	StallDefault = 30 * time.Second
	// ManifestBytesMax bounds a manifest or an index.
	ManifestBytesMax = 4 << 20
	dialTimeout      = 10 * time.Second
	handshakeTimeout = 10 * time.Second
	idleTimeout      = 30 * time.Second
)

// Config says which registries are spoken with, and how. The files are read for each
// session, so that what is written into them counts at once.
type Config struct {
	// AuthFile is a docker config file with credentials; empty means none.
	AuthFile string
	// CAFile has certificates, as PEM, that sign registries beside those of the system.
	CAFile string
	// PlainHTTP lists registries, as in registry.lan:5000, that are spoken with
	// unencrypted.
	PlainHTTP []string
	// Stall is how long no byte may come. Default StallDefault.
	Stall time.Duration
}

// Check reads the files once and says what is wrong with them.
func (c Config) Check() error {
	if _, err := c.roots(); err != nil {
		return err
	}
	if _, _, err := c.credential("docker.io"); err != nil && !errors.Is(err, errHelper) {
		return err
	}
	return nil
}

// errHelper is of one registry and not of the whole file.
var errHelper = errors.New("no credential for the registry can be had")

// credential returns what the configured file has for a registry.
func (c Config) credential(registry string) (authfile.Credential, bool, error) {
	if c.AuthFile == "" {
		return authfile.Credential{}, false, nil
	}
	data, err := os.ReadFile(c.AuthFile)
	if err != nil {
		return authfile.Credential{}, false, fmt.Errorf("read the file of credentials: %w", err)
	}
	found, ok, err := authfile.Find(data, registry)
	switch {
	case err != nil && strings.Contains(err.Error(), registry):
		return found, false, fmt.Errorf("%w: the file %s: %w", errHelper, c.AuthFile, err)
	case err != nil:
		return found, false, fmt.Errorf("the file of credentials %s: %w", c.AuthFile, err)
	}
	return found, ok, nil
}

// roots are the authorities of registries; nil means those of the system.
func (c Config) roots() (*x509.CertPool, error) {
	if c.CAFile == "" {
		return nil, nil //nolint:nilnil // that is how crypto/tls spells the system's
	}
	pem, err := os.ReadFile(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("read the authorities of registries: %w", err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("the authorities of registries: %s holds no certificate in PEM form", c.CAFile)
	}
	return pool, nil
}

// Session is the talk with one registry for one pull. Its Resolver may be used from
// many goroutines until Close.
type Session struct {
	Resolver remotes.Resolver

	host      string
	given     bool
	redact    *strings.Replacer
	transport *transport
}

// Open prepares a session with a registry, as in docker.io; nothing is sent yet. A
// credential takes the place of the configured one. The error is a *Failure.
func (c Config) Open(host string, credential *authfile.Credential) (*Session, error) {
	roots, err := c.roots()
	if err != nil {
		return nil, &Failure{Text: err.Error()}
	}
	var used authfile.Credential
	given := credential != nil
	if given {
		used = *credential
	} else if used, given, err = c.credential(host); err != nil {
		// Without it the registry would be asked as nobody: a wrong answer may come.
		return nil, &Failure{Text: err.Error()}
	}
	s := &Session{host: host, given: given, redact: redactor(used)}
	stall := c.Stall
	if stall <= 0 {
		stall = StallDefault
	}
	s.transport = &transport{
		session: s, stall: stall, plain: c.PlainHTTP, loopback: isLoopback(host),
		inner: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         (&net.Dialer{Timeout: min(dialTimeout, stall)}).DialContext,
			TLSHandshakeTimeout: min(handshakeTimeout, stall),
			TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			IdleConnTimeout:     idleTimeout,
			ForceAttemptHTTP2:   true,
		},
	}
	client := &http.Client{Transport: s.transport}
	secret := used.Password
	if used.IdentityToken != "" {
		used.Username, secret = "", used.IdentityToken
	}
	authorizer := docker.NewDockerAuthorizer(docker.WithAuthClient(client), docker.WithAuthCreds(func(asked string) (string, string, error) {
		// A registry that was redirected to is nobody's whom the credential is for.
		if asked != endpointOf(host) {
			return "", "", nil
		}
		return used.Username, secret, nil
	}))
	s.Resolver = docker.NewResolver(docker.ResolverOptions{Hosts: func(string) ([]docker.RegistryHost, error) {
		return []docker.RegistryHost{{
			Client: client, Authorizer: authorizer, Host: endpointOf(host), Scheme: c.schemeOf(host), Path: "/v2",
			Capabilities: docker.HostCapabilityPull | docker.HostCapabilityResolve,
		}}, nil
	}})
	return s, nil
}

// Received is how many bytes have come in.
func (s *Session) Received() int64 { return s.transport.received.Load() }

// Quiet is for how long nothing has come in from a registry that is being waited for; 0
// when none is.
func (s *Session) Quiet() time.Duration { return s.transport.quiet() }

// Close ends the connections.
func (s *Session) Close() { s.transport.inner.CloseIdleConnections() }

func (c Config) schemeOf(host string) string {
	if isLoopback(host) || slices.Contains(c.PlainHTTP, host) {
		return "http"
	}
	return "https"
}

// endpointOf is where a registry answers.
func endpointOf(host string) string {
	if host == "docker.io" {
		return "registry-1.docker.io"
	}
	return host
}

func isLoopback(host string) bool {
	name := host
	if only, _, err := net.SplitHostPort(host); err == nil {
		name = only
	}
	if name == "localhost" {
		return true
	}
	ip := net.ParseIP(strings.Trim(name, "[]"))
	return ip != nil && ip.IsLoopback()
}

func redactor(credential authfile.Credential) *strings.Replacer {
	var pairs []string
	for _, secret := range credential.Secrets() {
		pairs = append(pairs, secret, "***")
	}
	return strings.NewReplacer(pairs...)
}

// ended tells whether a context is the cause, and not the registry.
func ended(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, context.Canceled)
}
