// Package nodelogs lets the API read the logs that lie on its own node.
package nodelogs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"time"

	"github.com/errand-run/errand/api"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/nodes/logs"
)

// gatherTime is how long a batch that has something waits for more.
const gatherTime = time.Millisecond

// Logs reads the logs below a directory. It implements api.Logs.
type Logs struct {
	root string
}

// New reads the logs below root, the node's directory of all logs.
func New(root string) Logs { return Logs{root: root} }

// Open implements api.Logs.
func (l Logs) Open(_ context.Context, request api.LogRequest) (api.LogReader, error) {
	r, err := logs.OpenReader(logs.Path(l.root, request.Run, request.Attempt), logs.Options{
		Offset: request.Offset,
		Tail:   int(request.TailLines),
		Since:  request.Since,
		Follow: request.Follow,
	})
	if err != nil {
		return nil, err
	}
	return &reader{reader: r, follow: request.Follow}, nil
}

type reader struct {
	reader *logs.Reader
	follow bool
	// over is set when the end was returned.
	over bool
}

// Close implements api.LogReader.
func (r *reader) Close() error { return r.reader.Close() }

// Next implements api.LogReader.
func (r *reader) Next(ctx context.Context) (api.LogBatch, error) {
	var batch api.LogBatch
	if r.over {
		return batch, io.EOF
	}
	if err := ctx.Err(); err != nil {
		return batch, err
	}
	size, reading := 0, ctx
	for size < api.LogBatchBytes && len(batch.Chunks) < api.LogBatchChunks {
		chunk, err := r.reader.Next(reading)
		switch {
		case errors.Is(err, io.EOF):
			return r.last(batch)
		case err != nil && len(batch.Chunks) > 0:
			// Nothing more for now, or a failure that the next call meets again.
			return batch, nil
		case err != nil:
			return batch, err
		}
		if len(batch.Chunks) == 0 && r.follow {
			var cancel context.CancelFunc
			reading, cancel = context.WithTimeout(ctx, gatherTime)
			defer cancel()
		}
		size += len(chunk.Data)
		batch.Chunks = append(batch.Chunks, publicChunk(chunk))
	}
	return batch, nil
}

// last is the batch at the end of what there is.
func (r *reader) last(batch api.LogBatch) (api.LogBatch, error) {
	r.over = true
	if end, ok := r.reader.End(); ok {
		batch.End = &api.LogEnd{Complete: end.Complete, DroppedBytes: end.Dropped}
	} else if len(batch.Chunks) == 0 {
		if !r.reader.Found() {
			return batch, api.ErrNoLog
		}
		return batch, io.EOF
	}
	return batch, nil
}

// publicChunk copies the data, which the reader uses again.
func publicChunk(chunk logs.Chunk) api.LogChunk {
	stream := errandv1.Stream_STREAM_UNSPECIFIED
	switch chunk.Stream {
	case logs.Stdout:
		stream = errandv1.Stream_STREAM_STDOUT
	case logs.Stderr:
		stream = errandv1.Stream_STREAM_STDERR
	}
	return api.LogChunk{Stream: stream, At: chunk.At, Data: bytes.Clone(chunk.Data), Next: chunk.Next, Dropped: chunk.Dropped}
}
