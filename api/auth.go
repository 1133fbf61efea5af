package api

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api/codes"
)

// The bounds of a token.
const (
	tokenRandomBytes = 32
	tokenBytesMin    = 16
	tokenBytesMax    = 4096
)

// LoadOrCreateToken reads the token in a file, or makes one of 32 random bytes in
// base32 and stores it with mode 0600. Two processes that do so at once get the
// same token. A file that others than its owner may read is refused, since its
// token may be known already.
func LoadOrCreateToken(path string) (string, error) {
	token, err := loadToken(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return token, err
	}
	if err := createToken(path); err != nil {
		return "", fmt.Errorf("create the API token %s: %w", path, err)
	}
	return loadToken(path)
}

func loadToken(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read the API token: %w", err)
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return "", fmt.Errorf("read the API token: %w", err)
	}
	switch {
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("read the API token: %s is not a file", path)
	case info.Mode().Perm()&0o077 != 0:
		return "", fmt.Errorf("read the API token: %s can be read by others (mode %04o): remove it for a new one, or chmod 0600 it", path, info.Mode().Perm())
	case info.Size() > tokenBytesMax:
		return "", fmt.Errorf("read the API token: %s is larger than %d bytes", path, tokenBytesMax)
	}
	data := make([]byte, info.Size())
	n, err := file.ReadAt(data, 0)
	if err != nil && n < len(data) {
		return "", fmt.Errorf("read the API token %s: %w", path, err)
	}
	token := strings.TrimSpace(string(data))
	if len(token) < tokenBytesMin {
		return "", fmt.Errorf("read the API token: %s holds fewer than %d characters: remove it for a new one", path, tokenBytesMin)
	}
	return token, nil
}

// createToken puts a whole file in place or none: it is written under another name
// first, and a link, unlike a rename, never replaces what another process made.
func createToken(path string) error {
	random := make([]byte, tokenRandomBytes)
	_, _ = rand.Read(random) // never fails
	token := strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(random))
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(file.Name()) }()
	_, err = file.WriteString(token + "\n")
	err = errors.Join(err, file.Sync(), file.Close())
	if err != nil {
		return err
	}
	if err := os.Link(file.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// authenticated lets a request through that carries the token. Everything but
// /healthz and /readyz needs it, /metrics and the profiles too: a heap profile
// holds what runs hold.
func (s *Server) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.showsToken(r) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="errand"`)
			refuse(w, r, http.StatusUnauthorized, fail(codes.Unauthenticated,
				"the API token is missing or wrong: send it as Authorization: Bearer TOKEN (it is in api.token in the node's data directory)"))
			return
		}
		known(r)
		next.ServeHTTP(w, r)
	})
}

// showsToken tells whether a request carries the token; in dev mode each might as well.
func (s *Server) showsToken(r *http.Request) bool {
	if s.config.Dev {
		return true
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	got := sha256.Sum256([]byte(strings.TrimSpace(token)))
	// Digests are compared, so that not even the length of the token shows.
	return subtle.ConstantTimeCompare(s.token[:], got[:]) == 1 && strings.EqualFold(scheme, "Bearer")
}

// sameOrigin refuses what a web page of another origin sends, and requests under a
// name that is not this node's: a page can make its own name point to a loopback
// address and would then be of the same origin. It matters most in dev mode, where
// nothing else keeps a browser's tab from starting runs.
func (s *Server) sameOrigin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.knownHost(r.Host) {
			refuse(w, r, http.StatusForbidden, fail(codes.ForeignOrigin, "this node is not called %s: use localhost or an address", quoteShort(r.Host)))
			return
		}
		if foreign(r) {
			refuse(w, r, http.StatusForbidden, fail(codes.ForeignOrigin, "web pages of other origins may not call this node"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// knownHost takes addresses as they are: a page can not make one its own name.
func (s *Server) knownHost(hostport string) bool {
	host := hostport
	if name, _, err := net.SplitHostPort(hostport); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host == "localhost" || net.ParseIP(strings.Trim(host, "[]")) != nil || slices.Contains(s.config.Hosts, host)
}

func foreign(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "cross-site", "same-site":
		return true
	}
	origins := r.Header.Values("Origin")
	if len(origins) == 0 {
		return false
	}
	origin, err := url.Parse(origins[0])
	return err != nil || len(origins) > 1 || origin.Host == "" || !strings.EqualFold(origin.Host, r.Host)
}

// loopbackOnly hides a handler from peers that are not on this machine.
func loopbackOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.RemoteAddr)
		if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() {
			http.NotFound(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// errorWriter speaks the protocol of whoever called.
var errorWriter = connect.NewErrorWriter()

// refusedBodyTime is how long the rest of a request is received that was refused by its
// head: the answer leaves only after it.
const refusedBodyTime = time.Second

func refuse(w http.ResponseWriter, r *http.Request, status int, err *connect.Error) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(refusedBodyTime)) // writers of tests have none
	if errorWriter.IsSupported(r) && r.Method == http.MethodPost {
		// The peer has gone if this fails.
		_ = errorWriter.Write(w, r, err)
		return
	}
	http.Error(w, err.Message(), status)
}
