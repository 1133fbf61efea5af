package store

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/errand-run/errand/cluster/records"
)

// patience bounds the waits of tests for what normally takes milliseconds.
const patience = 20 * time.Second

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
