package boot

import (
	"bytes"
	"context"
	"errors"
	"io"

	"github.com/errand-run/errand/api"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/nodes/logs"
)

var streams = map[logs.Stream]errandv1.Stream{
	logs.Stdout: errandv1.Stream_STREAM_STDOUT,
	logs.Stderr: errandv1.Stream_STREAM_STDERR,
}

// attemptLogs reads the logs below a directory for the API.
type attemptLogs struct{ root string }

func (l attemptLogs) Open(_ context.Context, request api.LogRequest) (api.LogReader, error) {
	reader, err := logs.OpenReader(logs.Dir(l.root, request.Run, request.Attempt), logs.Options{
		Offset: request.Offset, Tail: int(request.TailLines), Since: request.Since, Follow: request.Follow,
	})
	if err != nil {
		return nil, err
	}
	return &attemptLog{reader: reader}, nil
}

// attemptLog gathers the chunks that are there into batches.
type attemptLog struct {
	reader *logs.Reader
	ended  bool
}

// Next waits for one chunk and takes those along that came with it.
func (l *attemptLog) Next(ctx context.Context) (api.LogBatch, error) {
	var batch api.LogBatch
	size := 0
	for len(batch.Chunks) == 0 || l.reader.More() && size < api.LogBatchBytes && len(batch.Chunks) < api.LogBatchChunks {
		chunk, err := l.reader.Next(ctx)
		if errors.Is(err, io.EOF) {
			if batch.End = l.end(); batch.End == nil && len(batch.Chunks) == 0 {
				return batch, io.EOF
			}
			return batch, nil
		}
		if err != nil {
			return batch, err
		}
		batch.Chunks = append(batch.Chunks, api.LogChunk{
			Stream: streams[chunk.Stream], At: chunk.At, Data: bytes.Clone(chunk.Data), Next: chunk.Next, Dropped: chunk.Dropped,
		})
		size += len(chunk.Data)
	}
	return batch, nil
}

// end is handed out once.
func (l *attemptLog) end() *api.LogEnd {
	end, ok := l.reader.End()
	if !ok || l.ended {
		return nil
	}
	l.ended = true
	return &api.LogEnd{Complete: end.Complete, DroppedBytes: end.Dropped}
}

// Close releases the log.
func (l *attemptLog) Close() error { return l.reader.Close() }
