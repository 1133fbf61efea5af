package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"

	"github.com/errand-run/errand/cluster/records"
)

// patience bounds the waits of tests for what normally takes milliseconds.
const patience = 2 * time.Minute

// busy is how much later than it is due something may come on a machine that has other
// things to do, whose disk is one of them.
const busy = 10 * time.Second

// dataDir has a path short enough for a unix socket, whatever the test is called.
func dataDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "store")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "store")
}

func openAt(t testing.TB, config Config) *Store {
	t.Helper()
	if config.Log == nil {
		config.Log = zaptest.NewLogger(t)
	}
	s, err := Open(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func openEmbedded(t testing.TB) *Store {
	t.Helper()
	return openAt(t, Config{DataDir: dataDir(t)})
}

func do(t testing.TB, s *Store, txn records.Txn) records.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	result, err := s.Do(ctx, txn)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func putTxn(key, value string) records.Txn {
	return records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: key, Value: []byte(value)}}}
}

func deleteTxn(key string) records.Txn {
	return records.Txn{Then: []records.Op{{Kind: records.OpDelete, Key: key}}}
}

func TestOpenEmbeddedKeepsWhatWasWritten(t *testing.T) {
	dir := dataDir(t)
	s := openAt(t, Config{DataDir: dir})
	revision := do(t, s, putTxn("k", "1")).Revision
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openAt(t, Config{DataDir: dir})
	kv, ok := do(t, s, records.Read(records.Get("k"))).First(0)
	if !ok || string(kv.Value) != "1" || kv.Mod != revision {
		t.Errorf("after a restart: %+v, %v", kv, ok)
	}
}

func TestOpenEmbeddedIsForItsOwnUserAlone(t *testing.T) {
	dir := dataDir(t)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	openAt(t, Config{DataDir: dir})
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, SocketName): 0o600, filepath.Join(dir, lockName): 0o600} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", path, got, want)
		}
	}
}

func TestOpenEmbeddedIsQuiet(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	s := openAt(t, Config{DataDir: dataDir(t), Log: zap.New(core)})
	do(t, s, putTxn("k", "1"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, entry := range logs.All() {
		t.Errorf("%s %s %v", entry.Level, entry.Message, entry.ContextMap())
	}
}

func TestOpenEmbeddedWithoutRoomForASocket(t *testing.T) {
	dir := filepath.Join(dataDir(t), strings.Repeat("d", 60), strings.Repeat("d", 60))
	s := openAt(t, Config{DataDir: dir})
	do(t, s, putTxn("k", "1"))
	if _, err := os.Stat(filepath.Join(dir, SocketName)); err == nil {
		t.Error("there is a socket")
	}
}

func TestOpenEmbeddedRefusesADirectoryThatIsHeld(t *testing.T) {
	dir := dataDir(t)
	s := openAt(t, Config{DataDir: dir})
	began := time.Now()
	_, err := Open(context.Background(), Config{DataDir: dir})
	if holder := fmt.Sprintf("process %d", os.Getpid()); records.ClassOf(err) != records.ClassConflict || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), holder) {
		t.Errorf("%v (%v)", err, records.ClassOf(err))
	}
	if took := time.Since(began); took > busy {
		t.Errorf("refused after %v", took)
	}
	do(t, s, putTxn("k", "the holder goes on"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	openAt(t, Config{DataDir: dir})
}

func TestOpenEmbeddedInABadDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(context.Background(), Config{DataDir: filepath.Join(file, "store")}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("below a file: %v", err)
	}
	dir := dataDir(t)
	if err := os.MkdirAll(filepath.Join(dir, serverName, "member", "snap"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, serverName, "member", "snap", "db"), []byte(strings.Repeat("not a database", 9000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(context.Background(), Config{DataDir: dir}); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("with a broken file: %v", err)
	}
}

func TestOpenRefusesABadConfiguration(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.pem")
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	endpoints := []string{"127.0.0.1:1"}
	cases := []struct {
		name   string
		config Config
		says   string
	}{
		{"nothing at all", Config{}, "data directory"},
		{"an empty endpoint", Config{Endpoints: []string{"a:1", " "}}, "empty endpoint"},
		{"a certificate without a key", Config{Endpoints: endpoints, CertFile: missing}, "go together"},
		{"a certificate that is missing", Config{Endpoints: endpoints, CertFile: missing, KeyFile: missing}, missing},
		{"authorities that are missing", Config{Endpoints: endpoints, CAFile: missing}, missing},
		{"authorities that are none", Config{Endpoints: endpoints, CAFile: empty}, empty},
		{"a password without a user", Config{Endpoints: endpoints, Password: "p"}, "user name"},
		{"a user of the embedded store", Config{DataDir: t.TempDir(), Username: "u"}, "embedded"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := Open(context.Background(), c.config)
			if records.ClassOf(err) != records.ClassInvalid || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v (%v), want %q", err, records.ClassOf(err), c.says)
			}
		})
	}
}

func TestOpenNamesEndpointsThatDoNotAnswer(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	cases := map[string]Config{
		"nobody there":         {Endpoints: []string{"127.0.0.1:1", "127.0.0.1:2"}},
		"somebody silent":      {Endpoints: []string{silent.Addr().String()}},
		"a name of nobody":     {Endpoints: []string{"no-such-host.invalid:2379"}},
		"nobody, with a login": {Endpoints: []string{"127.0.0.1:1"}, Username: "u", Password: "hidden-password"},
	}
	for name, config := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			began := time.Now()
			_, err := Open(ctx, config)
			if err == nil || !strings.Contains(err.Error(), strings.Join(config.Endpoints, ", ")) {
				t.Fatalf("%v", err)
			}
			t.Logf("after %v: %v", time.Since(began), err)
			if name == "nobody there" && !strings.Contains(err.Error(), "refused") {
				t.Error("the reason is missing")
			}
			if records.ClassOf(err) != records.ClassUnavailable {
				t.Errorf("class %v", records.ClassOf(err))
			}
			if strings.Contains(err.Error(), "hidden-password") {
				t.Error("the password is in the error")
			}
			if took := time.Since(began); took > 2*time.Second+dialTimeout+busy {
				t.Errorf("after %v", took)
			}
		})
	}
}

// An etcd that asks who is there does answer, and what it lacks is not patience.
func TestOpenSaysThatEtcdWantsAUser(t *testing.T) {
	server := startServers(t, 1, func(p *serverPlan) { p.Users = true })[0]
	client := server.client()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, added := client.UserAddWithOptions(ctx, "root", "", &clientv3.UserAddOptions{NoPassword: true})
	_, granted := client.UserGrantRole(ctx, "root", "root")
	_, enabled := client.AuthEnable(ctx)
	if err := errors.Join(added, granted, enabled); err != nil {
		t.Fatal(err)
	}
	_, err := Open(ctx, Config{Endpoints: []string{server.plan.Client}})
	if err == nil || !strings.Contains(err.Error(), "common name") || strings.Contains(err.Error(), "does not answer") {
		t.Errorf("%v", err)
	}
}

// A machine that is busy needs longer than a call may take to read a large store; a
// limit that it misses once it misses at each start.
func TestOpenGivesAnEmbeddedStoreTimeToReadItsFile(t *testing.T) {
	for _, c := range []struct {
		name   string
		config Config
		want   time.Duration
	}{
		{"embedded", Config{DataDir: "data"}, OpenEmbeddedTimeout},
		{"over the network", Config{Endpoints: []string{"127.0.0.1:2379"}}, OpenTimeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.config.openTimeout(); got != c.want || OpenEmbeddedTimeout < 10*OpenTimeout {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

func TestOpenEmbeddedIsReadySoon(t *testing.T) {
	began := time.Now()
	s := openEmbedded(t)
	t.Logf("ready after %v", time.Since(began))
	began = time.Now()
	do(t, s, putTxn("a", "1"))
	t.Logf("written after %v", time.Since(began))
	began = time.Now()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("closed after %v", time.Since(began))
}
