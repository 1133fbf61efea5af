package api_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/errand-run/errand/cluster/store"
)

// etcd is one real store for all tests; each test has a root of its own in it.
var etcd *store.Store

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "api-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if etcd, err = store.Open(context.Background(), store.Config{DataDir: filepath.Join(dir, "etcd")}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := etcd.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
