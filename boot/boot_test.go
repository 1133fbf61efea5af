package boot_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/fx"
	"go.uber.org/goleak"

	"github.com/errand-run/errand/boot"
	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/sandbox/guest/guesttest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(asHost); dir != "" {
		os.Exit(beHost(dir))
	}
	goleak.VerifyTestMain(m)
}

func TestGraphIsComplete(t *testing.T) {
	if err := fx.ValidateApp(boot.Node(boot.Config{DataDir: t.TempDir()}), fx.NopLogger); err != nil {
		t.Fatal(err)
	}
}

func TestNodeInsideAnotherApplicationStartsAndStopsTwice(t *testing.T) {
	config := boot.Config{Name: "embedded", DataDir: t.TempDir(), Listen: "127.0.0.1:0", Dev: true, Drivers: []string{boot.DriverNull}}
	for range 2 {
		var node *boot.Instance
		app := fx.New(boot.Node(config), fx.Populate(&node), fx.NopLogger)
		if err := app.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		connection, err := net.DialTimeout("tcp", node.Address(), time.Second)
		if err != nil {
			t.Errorf("the API does not listen: %v", err)
		} else if err := connection.Close(); err != nil {
			t.Error(err)
		}
		if err := app.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
}

func TestUUIDOutlivesJournalAndStore(t *testing.T) {
	config := boot.Config{Name: "embedded", DataDir: t.TempDir(), Listen: "127.0.0.1:0", Dev: true, Drivers: []string{boot.DriverNull}}
	startOnce := func(config boot.Config) string {
		t.Helper()
		app := fx.New(boot.Node(config), fx.NopLogger)
		if err := app.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := app.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
		uuid, err := os.ReadFile(filepath.Join(config.DataDir, "node.uuid"))
		if err != nil || len(uuid) == 0 {
			t.Fatalf("uuid %q, %v", uuid, err)
		}
		return string(uuid)
	}
	first := startOnce(config)
	for _, lost := range [][]string{{"journal.db"}, {"journal.db", "etcd"}, {"journal.db", "node.uuid"}} {
		for _, name := range lost {
			if err := os.RemoveAll(filepath.Join(config.DataDir, name)); err != nil {
				t.Fatal(err)
			}
		}
		accepted := config
		accepted.AcceptLossOf = boot.LossOfJournal
		if uuid := startOnce(accepted); uuid != first {
			t.Errorf("without %v the uuid is %q, it was %q", lost, uuid, first)
		}
	}
}

func TestFailedStartNamesItsPartAndUnwindsTheOthers(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := taken.Close(); err != nil {
			t.Error(err)
		}
	}()
	occupied := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(occupied, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		config boot.Config
		part   string
		says   string
	}{
		{name: "address in use", config: boot.Config{Listen: taken.Addr().String()}, part: "cluster access", says: "--listen"},
		{name: "data directory is a file", config: boot.Config{DataDir: occupied}, part: "cluster access", says: occupied},
		{name: "helper absent", config: boot.Config{Drivers: []string{boot.DriverProcess}, SandboxInit: "/no/such/file"}, part: "sandbox host", says: "/no/such/file"},
		{name: "helper is text", config: boot.Config{Drivers: []string{boot.DriverProcess}, SandboxInit: occupied}, part: "sandbox host", says: occupied + " is not one"},
		{name: "helper is another program", config: boot.Config{Drivers: []string{boot.DriverProcess}, SandboxInit: os.Args[0]}, part: "sandbox host", says: os.Args[0] + " is not one but"},
		{name: "containerd does not answer", config: boot.Config{Drivers: []string{boot.DriverContainerd}, Containerd: "/no/such/socket", SandboxInit: guesttest.Build(t)}, part: "sandbox host", says: "containerd at /no/such/socket does not answer: no such file or directory (is it running?"},
		{name: "etcd does not answer", config: boot.Config{EtcdEndpoints: []string{"127.0.0.1:1"}}, part: "cluster access", says: "127.0.0.1:1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := test.config
			config.Dev = true
			if config.DataDir == "" {
				config.DataDir = t.TempDir()
			}
			if config.Listen == "" {
				config.Listen = "127.0.0.1:0"
			}
			if config.Drivers == nil {
				config.Drivers = []string{boot.DriverNull}
			}
			err := fx.New(boot.Node(config), fx.NopLogger).Start(t.Context())
			if err == nil || !strings.Contains(err.Error(), "start "+test.part) || !strings.Contains(err.Error(), test.says) {
				t.Fatalf("got %v; want the part %q and %q", err, test.part, test.says)
			}
			if config.DataDir == occupied {
				return
			}
			// What had started is down again: the same directory serves another node.
			app := fx.New(boot.Node(boot.Config{DataDir: config.DataDir, Listen: "127.0.0.1:0", Dev: true, Drivers: []string{boot.DriverNull}}), fx.NopLogger)
			if err := app.Start(t.Context()); err != nil {
				t.Fatalf("after the failed start: %v", err)
			}
			if err := app.Stop(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestConfigNamesEachFieldThatCanNotBe(t *testing.T) {
	for _, test := range []struct {
		name   string
		config boot.Config
		says   string
	}{
		{name: "listen on every address", config: boot.Config{Listen: "0.0.0.0:7400"}, says: "listen"},
		{name: "listen on a name", config: boot.Config{Listen: "example.org:7400"}, says: "loopback"},
		{name: "listen without port", config: boot.Config{Listen: "127.0.0.1"}, says: "as in 127.0.0.1:7400"},
		{name: "listen on a port that is none", config: boot.Config{Listen: "127.0.0.1:99999"}, says: "0 to 65535"},
		{name: "name in capitals", config: boot.Config{Name: "Node"}, says: "name"},
		{name: "driver unknown", config: boot.Config{Drivers: []string{"vm"}}, says: "vm"},
		{name: "driver twice", config: boot.Config{Drivers: []string{"null", "null"}}, says: "twice"},
		{name: "auto among others", config: boot.Config{Drivers: []string{"auto", "null"}}, says: "auto"},
		{name: "shards", config: boot.Config{Shards: -1}, says: "shards"},
		{name: "sandboxes", config: boot.Config{SandboxesMax: -1}, says: "sandboxes-max"},
		{name: "log", config: boot.Config{LogBytes: 1}, says: "log-bytes"},
		{name: "store too small", config: boot.Config{StoreMaxBytes: 1 << 20}, says: "store-max-bytes 1048576: must be 16777216 to"},
		{name: "store below 0", config: boot.Config{StoreMaxBytes: -1}, says: "store-max-bytes -1"},
		{name: "size of a store elsewhere", config: boot.Config{StoreMaxBytes: 1 << 30, EtcdEndpoints: []string{"x:1"}}, says: "--quota-backend-bytes"},
		{name: "prefix", config: boot.Config{EtcdPrefix: "errand"}, says: "etcd-prefix"},
		{name: "certificate without key", config: boot.Config{EtcdEndpoints: []string{"x:1"}, EtcdCert: "c"}, says: "etcd-key"},
		{name: "endpoint without a port", config: boot.Config{EtcdEndpoints: []string{"10.0.0.1:2379", "foo"}}, says: `etcd-endpoints "foo": give host:port or a URL`},
		{name: "endpoint with an empty host", config: boot.Config{EtcdEndpoints: []string{":2379"}}, says: "etcd-endpoints"},
		{name: "endpoint with another scheme", config: boot.Config{EtcdEndpoints: []string{"ftp://a:1"}}, says: "http or https"},
		{name: "endpoint with a path", config: boot.Config{EtcdEndpoints: []string{"https://a/b:1"}}, says: "etcd-endpoints"},
		{name: "endpoint with a port that is none", config: boot.Config{EtcdEndpoints: []string{"https://a:70000"}}, says: "1 to 65535"},
		{name: "authority without endpoints", config: boot.Config{EtcdCA: "c"}, says: "etcd-endpoints"},
		{name: "data with a comma", config: boot.Config{DataDir: "/a,b", Containerd: boot.ContainerdPrivate}, says: `data "/a,b": it has the character ',', which parts`},
		{name: "data with a colon", config: boot.Config{DataDir: "/a:b", Containerd: boot.ContainerdPrivate}, says: "the character ':'"},
		{name: "data with a backslash", config: boot.Config{DataDir: `/a\b`, Containerd: boot.ContainerdPrivate, Drivers: []string{"process", "containerd"}}, says: "overlayfs"},
		{name: "data with a percent sign", config: boot.Config{DataDir: "/a%41b", Containerd: boot.ContainerdPrivate}, says: "the character '%', which means"},
		{name: "data with a line break", config: boot.Config{DataDir: "/a\nb", Containerd: boot.ContainerdPrivate}, says: `the character '\n'`},
		{name: "loss of what can not be lost", config: boot.Config{AcceptLossOf: "all"}, says: "accept-loss-of"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := test.config.Complete(); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Fatalf("got %v; want the word %q", err, test.says)
			}
		})
	}
}

func TestConfigTakesAnyDataDirectoryThatMakesNoContainers(t *testing.T) {
	for _, config := range []boot.Config{{Drivers: []string{"process"}}, {Containerd: "/run/containerd/containerd.sock"}, {}} {
		config.DataDir = "/a b/ü'\"$&,:%"
		if _, err := config.Complete(); err != nil {
			t.Errorf("%+v: %v", config, err)
		}
	}
}

func TestConfigTakesEndpointsInEveryForm(t *testing.T) {
	config := boot.Config{EtcdEndpoints: []string{"10.0.0.1:2379", "http://[::1]:2379", "https://etcd-1.example.org:2379/", "localhost:1"}}
	if _, err := config.Complete(); err != nil {
		t.Fatal(err)
	}
}

func TestConfigDefaultsAreValid(t *testing.T) {
	config, err := boot.Config{}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	if config.Listen != boot.ListenDefault || config.Shards != records.ShardsDefault || config.LogBytes != 64<<20 || config.MemoryBytes <= 0 {
		t.Fatalf("got %+v", config)
	}
}
