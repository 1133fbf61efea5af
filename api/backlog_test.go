package api

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

func TestBacklogKeepsOrderAndItsBound(t *testing.T) {
	b := newBacklog()
	sent := make([]byte, 3*inputWindow+1)
	for i := range sent {
		sent[i] = byte(i * 7 >> 3)
	}
	go func() {
		for rest := sent; len(rest) > 0; {
			n := min(len(rest), inputWindow+100)
			if written, err := b.Write(rest[:n]); written != n || err != nil {
				t.Errorf("wrote %d of %d, %v", written, n, err)
			}
			rest = rest[n:]
		}
		b.end()
	}()
	var got bytes.Buffer
	for p := make([]byte, 1000); ; {
		b.mu.Lock()
		held := b.held.Len()
		b.mu.Unlock()
		if held > inputWindow {
			t.Fatalf("%d bytes are held", held)
		}
		n, err := b.Read(p)
		got.Write(p[:n])
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got.Bytes(), sent) {
		t.Errorf("%d bytes came of %d", got.Len(), len(sent))
	}
	if _, err := b.Write([]byte("late")); err == nil {
		t.Error("something comes after the end")
	}
}

func TestBacklogThatIsClosedHoldsNobodyUp(t *testing.T) {
	full, empty := newBacklog(), newBacklog()
	ended := make(chan error, 2)
	go func() {
		_, err := full.Write(make([]byte, inputWindow+1))
		ended <- err
	}()
	go func() {
		_, err := empty.Read(make([]byte, 1))
		ended <- err
	}()
	full.close()
	empty.close()
	for range 2 {
		if err := <-ended; !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("got %v", err)
		}
	}
}
