package registry

import (
	"context"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/errand-run/errand/nodes/sandbox/containerd/images/authfile"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images/registrytest"
	"github.com/errand-run/errand/nodes/sandbox/containerd/quiet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// towards makes a session with a registry of any name that is in truth the test's.
func towards(t *testing.T, config Config, host string, r *registrytest.Registry) *Session {
	t.Helper()
	s, err := config.Open(host, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.transport.inner.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, r.Host)
	}
	return s
}

func resolve(t *testing.T, s *Session, name string) *Failure {
	t.Helper()
	ctx, cancel := context.WithTimeout(quiet.Context(t.Context()), 2*time.Minute)
	defer cancel()
	_, _, err := s.Resolver.Resolve(ctx, name)
	if err == nil {
		return nil
	}
	failure := s.Explain(name, err)
	if failure == nil {
		t.Fatalf("not explained: %v", err)
	}
	return failure
}

func TestEncryptionIsTheRule(t *testing.T) {
	tls, plain := registrytest.New(true), registrytest.New(false)
	defer tls.Close()
	defer plain.Close()
	for _, r := range []*registrytest.Registry{tls, plain} {
		r.AddManifest("a", "1", "application/vnd.oci.image.manifest.v1+json", "sha256:"+strings.Repeat("a", 64), []byte("{}"))
	}
	authority := filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: tls.Server().Certificate().Raw})
	if err := os.WriteFile(authority, block, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		config Config
		of     *registrytest.Registry
		words  string // empty: it works
	}{
		{"an unknown authority is refused", Config{}, tls, "certificate signed by unknown authority"},
		{"a configured authority is trusted", Config{CAFile: authority}, tls, ""},
		{"what is not encrypted is refused", Config{}, plain, "it speaks no TLS"},
		{"what is not encrypted and listed is not", Config{PlainHTTP: []string{"example.com"}}, plain, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			failure := resolve(t, towards(t, c.config, "example.com", c.of), "example.com/a:1")
			if (failure == nil) != (c.words == "") || failure != nil && (failure.NotFound || !strings.Contains(failure.Text, c.words)) {
				t.Errorf("got %v, want %q", failure, c.words)
			}
		})
	}
}

func TestWhereARegistryMaySendTo(t *testing.T) {
	for _, c := range []struct {
		host, to string
		plain    []string
		allowed  bool
	}{
		{"example.com", "https://cdn.example/x", nil, true},
		{"example.com", "http://cdn.example/x", nil, false},
		{"example.com", "http://cdn.example/x", []string{"cdn.example"}, true},
		{"example.com", "http://127.0.0.1:2379/x", nil, false},
		{"example.com", "http://localhost/x", nil, false},
		{"example.com", "http://[::1]:80/x", nil, false},
		{"example.com", "file:///etc/passwd", nil, false},
		{"localhost:5000", "http://127.0.0.1:6000/x", nil, true},
		{"[::1]:5000", "http://localhost/x", nil, true},
		{"127.0.0.1", "http://cdn.example/x", nil, false},
	} {
		t.Run(c.host+" to "+c.to, func(t *testing.T) {
			s, err := Config{PlainHTTP: c.plain}.Open(c.host, nil)
			if err != nil {
				t.Fatal(err)
			}
			to, err := url.Parse(c.to)
			if err != nil {
				t.Fatal(err)
			}
			if got := s.transport.check(to); (got == nil) != c.allowed {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestACredentialGoesToItsRegistryAlone(t *testing.T) {
	r := registrytest.New(false)
	defer r.Close()
	var leaked []string
	r.Misbehave(func(q *http.Request) *registrytest.Fault {
		if strings.HasPrefix(q.Host, "other.example") {
			if q.Header.Get("Authorization") != "" {
				leaked = append(leaked, q.URL.Path)
			}
			return &registrytest.Fault{Status: 401, Header: http.Header{"Www-Authenticate": {`Basic realm="x"`}}}
		}
		return &registrytest.Fault{Status: 307, Header: http.Header{"Location": {"http://other.example/v2/a/manifests/1"}}}
	})
	config := Config{PlainHTTP: []string{"example.com", "other.example"}}
	s, err := config.Open("example.com", &authfile.Credential{Username: "ann", Password: "correct-horse"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.transport.inner.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, r.Host)
	}
	if failure := resolve(t, s, "example.com/a:1"); failure == nil || strings.Contains(failure.Text, "correct-horse") {
		t.Errorf("got %v", failure)
	}
	if len(leaked) > 0 {
		t.Errorf("another host was given the credential: %v", leaked)
	}
}

func TestCheckOfTheConfiguredFiles(t *testing.T) {
	write := func(text string) string {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		name   string
		config Config
		words  string
	}{
		{"nothing", Config{}, ""},
		{"credentials", Config{AuthFile: write(`{"auths":{}}`)}, ""},
		{"credentials with a helper for one registry", Config{AuthFile: write(`{"credHelpers":{"docker.io":"x"}}`)}, ""},
		{"credentials that are gone", Config{AuthFile: "/nowhere"}, "read the file of credentials"},
		{"credentials that are none", Config{AuthFile: write("hunter2")}, "is not the JSON"},
		{"authorities that are none", Config{CAFile: write("hunter2")}, "holds no certificate"},
		{"authorities that are gone", Config{CAFile: "/nowhere"}, "read the authorities"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.config.Check()
			if (err == nil) != (c.words == "") || err != nil && (!strings.Contains(err.Error(), c.words) || strings.Contains(err.Error(), "hunter2")) {
				t.Errorf("got %v, want %q", err, c.words)
			}
		})
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"": 0, "7": 7 * time.Second, "-7": 0, "soon": 0, "99999999999999999999": 0,
		"Fri, 01 May 2026 12:00:09 GMT": 9 * time.Second, "Fri, 01 May 2026 11:00:00 GMT": 0,
	} {
		if got := retryAfter(text, now); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestTextsOfOthersAreCutAndPrintable(t *testing.T) {
	if got := shown("a\x1b[31m\nb" + strings.Repeat("x", 500)); strings.ContainsAny(got, "\x1b\n") || len(got) > answerRunesMax+3 {
		t.Errorf("got %q", got)
	}
	if !errors.As(error(&Failure{Text: "x"}), new(*Failure)) {
		t.Error("a failure is no error")
	}
}
