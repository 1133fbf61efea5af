package api_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/api"
)

// The types of frames and the flags of HTTP/2 that these tests need.
const (
	frameData     = 0x0
	frameHeaders  = 0x1
	frameSettings = 0x4
	flagEndStream = 0x1
	flagEnd       = 0x4
)

func frame(kind, flags byte, stream uint32, payload string) string {
	head := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))
	head = append(head[1:], kind, flags)
	return string(binary.BigEndian.AppendUint32(head, stream)) + payload
}

// askedAndNotTaken is a connection over which /healthz is asked a number of times, by one
// that lets no answer's body through.
func (r *rig) askedAndNotTaken(times int) net.Conn {
	const windowOfNone = "\x00\x04\x00\x00\x00\x00"
	const get = "\x82\x86\x04\x08/healthz\x01\x09localhost"
	var text strings.Builder
	text.WriteString("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(frameSettings, 0, 0, windowOfNone))
	for i := range times {
		text.WriteString(frame(frameHeaders, flagEnd|flagEndStream, uint32(2*i+1), get))
	}
	return r.dial(text.String())
}

// awaitFrame reads until a frame of a kind has come, or the connection has ended.
func awaitFrame(conn net.Conn, kind byte) error {
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	for {
		var head [9]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return err
		}
		length := int64(head[0])<<16 | int64(head[1])<<8 | int64(head[2])
		if _, err := io.CopyN(io.Discard, conn, length); err != nil || head[3] == kind {
			return err
		}
	}
}

// Every user of the machine can ask, and take no answer: each holds a stream and what stands
// behind it, 250 on each of 1024 connections.
func TestStrangersWhoTakeNoAnswerAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(config *api.Config) { config.PingAfter = time.Hour }) // else pings end them
	const each = 200
	var conns []net.Conn
	for range api.StrangerAnswersMax/each + 1 {
		conns = append(conns, r.askedAndNotTaken(each))
	}
	ended := make(chan error, len(conns))
	for _, conn := range conns {
		go func() { ended <- awaitFrame(conn, frameData) }()
	}
	if err := <-ended; err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("none of those that take no answer is closed: %v", err)
	}
	if err := awaitFrame(r.askedAndNotTaken(1), frameHeaders); err != nil {
		t.Errorf("one that asks once gets no answer: %v", err)
	}
	for _, conn := range conns {
		_ = conn.Close()
	}
	for range conns[1:] {
		if err := <-ended; err == nil {
			t.Error("an answer came through a window of 0")
		}
	}
}
