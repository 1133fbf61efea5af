package boot

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/errand-run/errand/api/client"
)

func TestListenersAreOneAndEndTogether(t *testing.T) {
	before := goleak.IgnoreCurrent()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	inside := newPipe()
	all := listenOn(tcp, inside)
	dial := map[string]func() (net.Conn, error){
		"tcp":  func() (net.Conn, error) { return net.Dial("tcp", tcp.Addr().String()) },
		"pipe": func() (net.Conn, error) { return inside.dial(t.Context()) },
	}
	for name, dial := range dial {
		near, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		far, err := all.Accept()
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = far.Write([]byte(name)) }()
		got := make([]byte, len(name))
		if _, err := io.ReadFull(near, got); err != nil || string(got) != name {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		defer near.Close()
		defer far.Close()
	}
	// One that nobody has accepted yet ends with the listeners.
	late, err := inside.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := late.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := all.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := late.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the late connection: %v", err)
	}
	if _, err := all.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after the end: %v", err)
	}
	if _, err := inside.dial(t.Context()); !errors.Is(err, client.ErrGone) {
		t.Errorf("dial after the end: %v", err)
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}

func TestCutListenersHaveNoConnectionLeft(t *testing.T) {
	inside := newPipe()
	all := listenOn(inside)
	defer all.Close()
	accept := func() net.Conn {
		near, err := inside.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := all.Accept(); err != nil {
			t.Fatal(err)
		}
		return near
	}
	first := accept()
	all.cut()
	for name, near := range map[string]net.Conn{"before": first, "after": accept()} {
		if _, err := near.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("a connection from %s the cut: %v", name, err)
		}
	}
}
