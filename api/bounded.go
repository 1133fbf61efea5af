package api

import (
	"compress/gzip"
	"errors"
	"io"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api/codes"
)

// requestDrainMax is how much of a request that is too large is read to its end, so
// that a caller who sends first and reads then sees the refusal.
const requestDrainMax = 64 << 20

func errRequestTooLarge() error {
	return fail(codes.RequestTooLarge, "the request is larger than %d bytes", requestBytesMax)
}

// boundedBody is the body of a request of at most requestBytesMax bytes. Connect has a
// bound of its own, whose error lacks our code.
type boundedBody struct {
	io.ReadCloser
	left int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, errRequestTooLarge()
	}
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		_, _ = io.CopyN(io.Discard, b.ReadCloser, requestDrainMax) // a courtesy
		return 0, errRequestTooLarge()
	}
	return n, err
}

// boundedGzip unpacks one message of at most requestBytesMax bytes. It implements
// connect.Decompressor.
type boundedGzip struct {
	gzip.Reader
	left int64
}

func (b *boundedGzip) Reset(packed io.Reader) error {
	b.left = requestBytesMax
	return b.Reader.Reset(packed)
}

func (b *boundedGzip) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, errRequestTooLarge()
	}
	return n, err
}

// withBoundedGzip takes and sends messages packed with gzip.
func withBoundedGzip() connect.HandlerOption {
	return connect.WithCompression("gzip",
		func() connect.Decompressor { return &boundedGzip{} },
		func() connect.Compressor { return gzip.NewWriter(io.Discard) })
}

// uploadError gives the bound of one message of an upload our code.
func uploadError(err error) error {
	var made *connect.Error
	if errors.As(err, &made) && made.Code() == connect.CodeResourceExhausted && len(made.Details()) == 0 {
		return fail(codes.RequestTooLarge, "a message of an upload holds at most %d bytes", importMessageMax)
	}
	return err
}
