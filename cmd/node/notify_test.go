package main

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// listenNotify is the service manager's end.
func listenNotify(t *testing.T) (environment []string, states *net.UnixConn) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "errand-notify-") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	address := filepath.Join(dir, "socket")
	states, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = states.Close() })
	return []string{"NOTIFY_SOCKET=" + address}, states
}

func wantState(t *testing.T, states *net.UnixConn, want string) {
	t.Helper()
	if err := states.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 64)
	n, err := states.Read(buffer)
	if err != nil || string(buffer[:n]) != want {
		t.Fatalf("told %q (%v), want %q", buffer[:n], err, want)
	}
}

func TestServiceManagerIsToldWhenTheNodeIsReadyAndWhenItStops(t *testing.T) {
	environment, states := listenNotify(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan int, 1)
	ready := make(chan struct{})
	stdout := writerFunc(func(p []byte) (int, error) { close(ready); return len(p), nil })
	go func() {
		ended <- run(ctx, []string{
			"--dev", "--drivers", "null", "--data", t.TempDir(), "--runtime-dir", t.TempDir(), "--listen", "127.0.0.1:0", "--log-level", "error",
		}, environment, stdout, io.Discard)
	}()
	wantState(t, states, notifyReady)
	<-ready // it says so itself before
	stop()
	wantState(t, states, notifyStopping)
	if code := <-ended; code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestAServiceManagerThatDoesNotAskIsNotTold(t *testing.T) {
	for name, environment := range map[string][]string{"none": nil, "an empty one": {"NOTIFY_SOCKET="}} {
		if err := notify(environment, notifyReady); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := notify([]string{"NOTIFY_SOCKET=/nowhere/socket"}, notifyReady); err == nil {
		t.Error("a service manager that is gone goes unnoticed")
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
