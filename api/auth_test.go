package api_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/errand-run/errand/api"
)

func TestTheTokenIsNeeded(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := newRig(t, func(config *api.Config) { config.Gatherer, config.Registerer = registry, registry })
	authorize := func(value string) func(*http.Request) {
		return func(request *http.Request) { request.Header.Set("Authorization", value) }
	}
	cases := []struct {
		name   string
		change func(*http.Request)
		want   int
	}{
		{"none", nil, http.StatusUnauthorized},
		{"wrong", authorize("Bearer wrong"), http.StatusUnauthorized},
		{"empty", authorize("Bearer "), http.StatusUnauthorized},
		{"the beginning of it", authorize("Bearer " + testToken[:5]), http.StatusUnauthorized},
		{"of another scheme", authorize("Basic " + testToken), http.StatusUnauthorized},
		{"without a scheme", authorize(testToken), http.StatusUnauthorized},
		{"right", withToken, http.StatusOK},
		{"right, scheme in lower case", authorize("bearer " + testToken), http.StatusOK},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if status, body := r.post(listPath, "{}", c.change); status != c.want {
				t.Errorf("list: %d %s", status, body)
			}
			for _, path := range []string{"/metrics", "/debug/pprof/cmdline"} {
				if status, body := r.get(path, c.change); status != c.want {
					t.Errorf("%s: %d %s", path, status, body)
				}
			}
			for _, path := range []string{"/healthz", "/readyz"} {
				if status, body := r.get(path, c.change); status != http.StatusOK {
					t.Errorf("%s: %d %s", path, status, body)
				}
			}
		})
	}
	if _, body := r.get("/metrics", withToken); !strings.Contains(body, `errand_api_call_duration_seconds_count{code="ok",procedure="/errand.v1.RunService/List"} 2`) {
		t.Errorf("metrics: %s", body)
	}
	if status, _ := r.get("/elsewhere", withToken); status != http.StatusNotFound {
		t.Errorf("unknown path: %d", status)
	}
}

func TestAServerOutsideDevNeedsAToken(t *testing.T) {
	r := newRig(t)
	_, err := api.New(api.Config{Keys: r.keys, Store: r.store, Router: r.router, Logs: unreadable{}, Rand: cryptoRand{}})
	if err == nil || !strings.Contains(err.Error(), "token") {
		t.Errorf("got %v", err)
	}
}

func TestBrowsersOfOtherOriginsAreRefusedInDevToo(t *testing.T) {
	r := newRig(t, func(config *api.Config) { config.Token, config.Dev, config.Hosts = "", true, []string{"node.example"} })
	header := func(key, value string) func(*http.Request) {
		return func(request *http.Request) { request.Header.Set(key, value) }
	}
	host := func(value string) func(*http.Request) {
		return func(request *http.Request) { request.Host = value }
	}
	cases := []struct {
		name   string
		change func(*http.Request)
		want   int
	}{
		{"no browser", nil, http.StatusOK},
		{"own origin", header("Origin", r.url), http.StatusOK},
		{"own origin, other port", header("Origin", "http://127.0.0.1:1"), http.StatusForbidden},
		{"foreign origin", header("Origin", "https://evil.example"), http.StatusForbidden},
		{"opaque origin", header("Origin", "null"), http.StatusForbidden},
		{"cross-site fetch", header("Sec-Fetch-Site", "cross-site"), http.StatusForbidden},
		{"same-site fetch", header("Sec-Fetch-Site", "same-site"), http.StatusForbidden},
		{"own page", header("Sec-Fetch-Site", "same-origin"), http.StatusOK},
		{"a name that was pointed here", host("evil.example:7400"), http.StatusForbidden},
		{"localhost", host("localhost:7400"), http.StatusOK},
		{"localhost of another", host("localhost.evil.example"), http.StatusForbidden},
		{"an IPv6 address", host("[::1]:7400"), http.StatusOK},
		{"an IPv6 address without a port", host("[::1]"), http.StatusOK},
		{"a name that was configured", host("Node.Example:7400"), http.StatusOK},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if status, body := r.post(listPath, "{}", c.change); status != c.want {
				t.Errorf("list: %d %s", status, body)
			}
			if status, body := r.get("/debug/pprof/cmdline", c.change); status != c.want {
				t.Errorf("profile: %d %s", status, body)
			}
		})
	}
}

func TestLoadOrCreateToken(t *testing.T) {
	t.Run("makes one of 32 random bytes that only the owner reads", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "api.token")
		token, err := api.LoadOrCreateToken(path)
		if err != nil || len(token) != 52 {
			t.Fatalf("token of %d characters, %v", len(token), err)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
		again, err := api.LoadOrCreateToken(path)
		if err != nil || again != token {
			t.Errorf("another token the second time, %v", err)
		}
		if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
			t.Errorf("left behind: %v", entries)
		}
	})
	t.Run("gives one token to all who ask at once", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "api.token")
		tokens := make(chan string, 16)
		var group sync.WaitGroup
		for range 16 {
			group.Go(func() {
				token, err := api.LoadOrCreateToken(path)
				if err != nil {
					t.Error(err)
				}
				tokens <- token
			})
		}
		group.Wait()
		close(tokens)
		first := <-tokens
		for token := range tokens {
			if token != first {
				t.Error("two tokens")
			}
		}
	})
	refused := []struct {
		name, content string
		mode          os.FileMode
	}{
		{"that others may read", strings.Repeat("x", 40), 0o644},
		{"that is empty", "\n", 0o600},
		{"that is too short", "short\n", 0o600},
		{"that is too large", strings.Repeat("x", 5000), 0o600},
	}
	for _, c := range refused {
		t.Run("refuses a file "+c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "api.token")
			if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, c.mode); err != nil {
				t.Fatal(err)
			}
			if token, err := api.LoadOrCreateToken(path); err == nil || token != "" || !strings.Contains(err.Error(), path) {
				t.Errorf("got %q, %v", token, err)
			}
		})
	}
	t.Run("names the directory that is not there", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "no", "api.token")
		if _, err := api.LoadOrCreateToken(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("got %v", err)
		}
	})
}
