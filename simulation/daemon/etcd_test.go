package daemon_test

import (
	"bufio"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/errand-run/errand/cluster/freeport"
)

// etcdVariable makes the test's binary an etcd server on the address that it holds,
// below the directory in etcdDirVariable.
const (
	etcdVariable    = "ERRAND_TEST_ETCD"
	etcdDirVariable = "ERRAND_TEST_ETCD_DIR"
)

// serveEtcd is the whole of a server's process. It ends with its standard input.
func serveEtcd(address, dir string) error {
	config := embed.NewConfig()
	config.Name, config.Dir, config.UnsafeNoFsync = "s0", dir, true
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	client, peer := url.URL{Scheme: "http", Host: address}, url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	config.InitialCluster = config.Name + "=" + peer.String()
	server, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	defer server.Close()
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		return err
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// outsideEtcd is an etcd in a process of its own.
type outsideEtcd struct {
	address string
	command *exec.Cmd
}

// freeAddress is one that stays the test's, whoever listens there and when.
func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := freeport.Address()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// startEtcd starts an etcd that ends with the test.
func startEtcd(t *testing.T) *outsideEtcd {
	t.Helper()
	e := &outsideEtcd{address: freeAddress(t)}
	e.command = exec.Command(os.Args[0])
	e.command.Env = append(os.Environ(), etcdVariable+"="+e.address, etcdDirVariable+"="+t.TempDir())
	e.command.Stderr = os.Stderr
	input, err := e.command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := e.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := e.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.resume(t)
		_ = input.Close()
		if err := e.command.Wait(); err != nil {
			t.Errorf("etcd: %v", err)
		}
	})
	ready := make(chan error, 1)
	go func() {
		_, err := bufio.NewReader(output).ReadString('\n')
		ready <- err
	}()
	select {
	case err := <-ready:
		if err != nil {
			t.Fatalf("etcd is not ready: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("etcd is not ready")
	}
	return e
}

func (e *outsideEtcd) pause(t *testing.T)  { sendSignal(t, e.command.Process.Pid, syscall.SIGSTOP) }
func (e *outsideEtcd) resume(t *testing.T) { sendSignal(t, e.command.Process.Pid, syscall.SIGCONT) }

func sendSignal(t *testing.T, pid int, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatalf("signal %s to %d: %v", signal, pid, err)
	}
}
