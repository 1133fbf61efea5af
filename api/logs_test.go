package api_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/errand-run/errand/api"
	"github.com/errand-run/errand/api/codes"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/nodes/logs"
)

// logOf opens the log of a run's attempt for writing, as the run's log process does.
func (r *rig) logOf(id string, attempt int32) *logs.Writer {
	r.t.Helper()
	w, err := logs.Create(logs.Path(r.logRoot, id, attempt), logs.WriterOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(w.Close)
	return w
}

func write(w *logs.Writer, stream logs.Stream, text string) {
	w.Append(stream, []byte(text))
	w.Flush()
}

func placed(node string, number int32) func(*recordv1.Run) {
	return func(run *recordv1.Run) { run.Placement = &recordv1.Placement{Node: node, Number: number} }
}

// received is what a Logs stream brought.
type received struct {
	stdout, stderr bytes.Buffer
	next           int64
	end            *errandv1.LogEnd
	attempt        int32
	messages       int
	chunks         int
}

func (got *received) take(message *errandv1.LogsResponse) {
	got.messages++
	got.attempt = message.GetAttempt()
	got.chunks += len(message.GetChunks())
	for _, chunk := range message.GetChunks() {
		out := &got.stdout
		if chunk.GetStream() == errandv1.Stream_STREAM_STDERR {
			out = &got.stderr
		}
		out.Write(chunk.GetData())
		got.next = chunk.GetNextOffset()
	}
	if message.GetEnd() != nil {
		got.end = message.GetEnd()
	}
}

// logs reads a whole stream.
func (r *rig) logs(request *errandv1.LogsRequest) (*received, error) {
	stream, err := r.runs.Logs(r.ctx, request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }()
	got := &received{}
	for stream.Receive() {
		got.take(stream.Msg())
	}
	return got, stream.Err()
}

// follow reads a stream in the background; each message is sent on the channel,
// which is closed at the stream's end.
func (r *rig) follow(request *errandv1.LogsRequest) (<-chan *errandv1.LogsResponse, <-chan error) {
	r.t.Helper()
	messages, ended := make(chan *errandv1.LogsResponse, 1000), make(chan error, 1)
	go func() {
		defer close(messages)
		stream, err := r.runs.Logs(r.ctx, request)
		if err != nil {
			ended <- err
			return
		}
		defer func() { _ = stream.Close() }()
		for stream.Receive() {
			messages <- stream.Msg()
		}
		ended <- stream.Err()
	}()
	return messages, ended
}

// until takes messages until the text on stdout is there.
func (got *received) until(t *testing.T, messages <-chan *errandv1.LogsResponse, text string) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	for !strings.Contains(got.stdout.String(), text) {
		select {
		case message, ok := <-messages:
			if !ok {
				t.Fatalf("the stream ended at %q", got.stdout.String())
			}
			got.take(message)
		case <-deadline:
			t.Fatalf("only %q came", got.stdout.String())
		}
	}
}

func (got *received) rest(messages <-chan *errandv1.LogsResponse) {
	for message := range messages {
		got.take(message)
	}
}

func TestLogsOfARunThatHasEnded(t *testing.T) {
	r := newRig(t)
	r.put("r.web.a", placed("n1", 1))
	w := r.logOf("r.web.a", 1)
	write(w, logs.Stdout, "one\ntwo\n")
	between := time.Now()
	write(w, logs.Stderr, "err\n")
	write(w, logs.Stdout, "last")
	w.End(true)
	r.end("r.web.a", recordv1.Status_STATUS_FAILED, 5)
	for _, follow := range []bool{false, true} {
		got, err := r.logs(&errandv1.LogsRequest{Id: "r.web.a", Follow: follow})
		if err != nil || got.stdout.String() != "one\ntwo\nlast" || got.stderr.String() != "err\n" || !got.end.GetComplete() || got.attempt != 1 {
			t.Errorf("follow %t: %+v, %v", follow, got, err)
		}
	}
	tail, err := r.logs(&errandv1.LogsRequest{Id: "r.web.a", TailLines: 1})
	if err != nil || tail.stdout.String() != "last" || tail.stderr.Len() > 0 || !tail.end.GetComplete() {
		t.Errorf("tail: %+v, %v", tail, err)
	}
	since, err := r.logs(&errandv1.LogsRequest{Id: "r.web.a", Since: timestamppb.New(between)})
	if err != nil || since.stdout.String() != "last" || since.stderr.String() != "err\n" {
		t.Errorf("since: %+v, %v", since, err)
	}
}

func TestLogsGoOnFromAnOffsetWithoutLossOrDoubling(t *testing.T) {
	r := newRig(t)
	r.put("r.web.a", placed("n1", 1))
	w := r.logOf("r.web.a", 1)
	write(w, logs.Stdout, "one\ntwo\nthree\n")
	w.End(true)
	r.end("r.web.a", recordv1.Status_STATUS_SUCCEEDED, 5)
	all, err := r.runs.Logs(r.ctx, &errandv1.LogsRequest{Id: "r.web.a"})
	if err != nil || !all.Receive() {
		t.Fatal(err)
	}
	chunks := all.Msg().GetChunks()
	_ = all.Close()
	var before string
	for _, chunk := range chunks {
		before += string(chunk.GetData())
		got, err := r.logs(&errandv1.LogsRequest{Id: "r.web.a", Offset: chunk.GetNextOffset(), Attempt: 1})
		if err != nil || before+got.stdout.String() != "one\ntwo\nthree\n" || !got.end.GetComplete() {
			t.Errorf("after %q: %q, %v", before, got.stdout.String(), err)
		}
	}
}

func TestLogsOfManyBytesAreExactAndComeInBatches(t *testing.T) {
	r := newRig(t)
	r.put("r.web.a", placed("n1", 1))
	w := r.logOf("r.web.a", 1)
	data := make([]byte, 3<<20)
	_, _ = rand.Read(data)
	w.Append(logs.Stdout, data)
	w.End(true)
	r.end("r.web.a", recordv1.Status_STATUS_SUCCEEDED, 5)
	for _, follow := range []bool{false, true} {
		got, err := r.logs(&errandv1.LogsRequest{Id: "r.web.a", Follow: follow})
		if err != nil || !bytes.Equal(got.stdout.Bytes(), data) {
			t.Errorf("%d of %d bytes, %v", got.stdout.Len(), len(data), err)
		}
		if got.messages > 200 {
			t.Errorf("%d messages", got.messages)
		}
	}
}

// A chunk for each line made a log of short lines a hundred times slower than one of long
// lines.
func TestLogsOfShortLinesTravelAsTheyWereRead(t *testing.T) {
	r := newRig(t)
	r.put("r.web.a", placed("n1", 1))
	w := r.logOf("r.web.a", 1)
	data := bytes.Repeat([]byte("y\n"), 1<<20)
	w.Append(logs.Stdout, data)
	w.End(true)
	r.end("r.web.a", recordv1.Status_STATUS_SUCCEEDED, 5)
	for _, follow := range []bool{false, true} {
		got, err := r.logs(&errandv1.LogsRequest{Id: "r.web.a", Follow: follow})
		if err != nil || !bytes.Equal(got.stdout.Bytes(), data) {
			t.Errorf("%d of %d bytes, %v", got.stdout.Len(), len(data), err)
		}
		if most := len(data) / logs.MaxRecord; got.chunks > most {
			t.Errorf("%d chunks; want at most %d", got.chunks, most)
		}
		tail, err := r.logs(&errandv1.LogsRequest{Id: "r.web.a", Follow: follow, TailLines: 40_000})
		if err != nil || tail.stdout.Len() != 80_000 {
			t.Errorf("tail: %d bytes, %v", tail.stdout.Len(), err)
		}
	}
}

func TestLogsFollowARunFromBeforeItsStartToItsEnd(t *testing.T) {
	r := newRig(t)
	r.put("r.web.a", nil)
	messages, ended := r.follow(&errandv1.LogsRequest{Id: "r.web.a", Follow: true})
	got := &received{}
	r.update("r.web.a", placed("n1", 1))
	w := r.logOf("r.web.a", 1)
	write(w, logs.Stdout, "first\n")
	got.until(t, messages, "first\n")
	r.update("r.web.a", func(run *recordv1.Run) { run.Status = recordv1.Status_STATUS_RUNNING })
	write(w, logs.Stdout, "second\n")
	got.until(t, messages, "second\n")
	write(w, logs.Stdout, "last")
	w.End(true)
	r.end("r.web.a", recordv1.Status_STATUS_SUCCEEDED, 5)
	got.rest(messages)
	if err := <-ended; err != nil || got.stdout.String() != "first\nsecond\nlast" || !got.end.GetComplete() {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestLogsFollowOnAfterTheEndMarkOfAPlacementThatNeverStarted(t *testing.T) {
	r := newRig(t)
	r.put("r.web.a", placed("n1", 1))
	r.logOf("r.web.a", 1).End(true)
	messages, ended := r.follow(&errandv1.LogsRequest{Id: "r.web.a", Follow: true})
	r.update("r.web.a", func(run *recordv1.Run) { run.Placement = nil })
	r.update("r.web.a", placed("n1", 2))
	w := r.logOf("r.web.a", 1)
	write(w, logs.Stdout, "hello\n")
	// Until then the end mark may still be the last that the reader has seen.
	r.update("r.web.a", func(run *recordv1.Run) { run.Status = recordv1.Status_STATUS_RUNNING })
	got := &received{}
	got.until(t, messages, "hello\n")
	w.End(true)
	r.end("r.web.a", recordv1.Status_STATUS_SUCCEEDED, 5)
	got.rest(messages)
	if err := <-ended; err != nil || got.stdout.String() != "hello\n" || !got.end.GetComplete() {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestLogsEndPromptlyWhenNothingMoreCanCome(t *testing.T) {
	cases := []struct {
		name    string
		prepare func(r *rig)
		stdout  string
	}{
		{"never placed", func(*rig) {}, ""},
		{"placed, without a log", func(r *rig) { r.update("r.web.a", placed("n1", 1)) }, ""},
		{"a log without an end mark", func(r *rig) {
			r.update("r.web.a", placed("n1", 1))
			write(r.logOf("r.web.a", 1), logs.Stdout, "cut")
		}, "cut"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.put("r.web.a", nil)
			c.prepare(r)
			messages, ended := r.follow(&errandv1.LogsRequest{Id: "r.web.a", Follow: true})
			got := &received{}
			if c.stdout != "" {
				got.until(t, messages, c.stdout)
			}
			r.end("r.web.a", recordv1.Status_STATUS_FAILED, 5)
			got.rest(messages)
			if err := <-ended; err != nil || got.end == nil || got.end.GetComplete() || got.stdout.String() != c.stdout {
				t.Errorf("followed: %+v, %v", got, err)
			}
			again, err := r.logs(&errandv1.LogsRequest{Id: "r.web.a"})
			if err != nil || again.end == nil || again.end.GetComplete() || again.stdout.String() != c.stdout {
				t.Errorf("read after the end: %+v, %v", again, err)
			}
		})
	}
}

func TestLogsOfACommandThatRanAreSaidToBeLostWhenTheirFilesAreGone(t *testing.T) {
	r := newRig(t)
	r.put("r.web.a", placed("n1", 1))
	w := r.logOf("r.web.a", 1)
	write(w, logs.Stdout, "hello\n")
	messages, ended := r.follow(&errandv1.LogsRequest{Id: "r.web.a", Follow: true})
	got := &received{}
	got.until(t, messages, "hello\n")
	if err := os.RemoveAll(r.logRoot); err != nil {
		t.Fatal(err)
	}
	w.End(true)
	r.update("r.web.a", func(run *recordv1.Run) {
		run.Status, run.StartedAt = recordv1.Status_STATUS_RUNNING, 4
		run.Attempts = []*recordv1.Attempt{{Number: 1, Node: "n1", Placement: 1, StartedAt: 4, LogComplete: true}}
	})
	r.end("r.web.a", recordv1.Status_STATUS_SUCCEEDED, 5)
	got.rest(messages)
	wantCode(t, <-ended, codes.LogLost)
	for _, request := range []*errandv1.LogsRequest{{}, {Follow: true}, {TailLines: 3}, {Attempt: 1, Offset: got.next}} {
		request.Id = "r.web.a"
		read, err := r.logs(request)
		wantCode(t, err, codes.LogLost)
		if err == nil || !strings.Contains(err.Error(), "its files are not on node n1 any more") || read != nil && read.end != nil {
			t.Errorf("%v: %+v, %v", request, read, err)
		}
	}
}

func TestLogsOfACommandThatEndedBeforeItsOutputWasRecordedSaySo(t *testing.T) {
	r := newRig(t)
	r.put("r.web.a", placed("n1", 1))
	r.update("r.web.a", func(run *recordv1.Run) {
		run.Status, run.StartedAt = recordv1.Status_STATUS_RUNNING, 4
		run.Attempts = []*recordv1.Attempt{{Number: 1, Node: "n1", Placement: 1, StartedAt: 4}}
	})
	r.end("r.web.a", recordv1.Status_STATUS_FAILED, 5)
	for _, follow := range []bool{false, true} {
		_, err := r.logs(&errandv1.LogsRequest{Id: "r.web.a", Follow: follow})
		wantCode(t, err, codes.LogLost)
		if err == nil || !strings.Contains(err.Error(), "no output of run r.web.a was recorded") {
			t.Errorf("follow %t: %v", follow, err)
		}
	}
}

func TestLogsWithoutFollowGiveWhatIsThere(t *testing.T) {
	r := newRig(t)
	r.put("r.web.a", nil)
	if got, err := r.logs(&errandv1.LogsRequest{Id: "r.web.a"}); err != nil || got.messages > 0 {
		t.Errorf("waiting: %+v, %v", got, err)
	}
	r.update("r.web.a", placed("n1", 1))
	write(r.logOf("r.web.a", 1), logs.Stdout, "so far\n")
	if got, err := r.logs(&errandv1.LogsRequest{Id: "r.web.a"}); err != nil || got.stdout.String() != "so far\n" || got.end != nil {
		t.Errorf("running: %+v, %v", got, err)
	}
}

func TestLogsOfAnEarlierAttempt(t *testing.T) {
	r := newRig(t)
	r.put("r.web.a", func(run *recordv1.Run) {
		run.Attempt = 2
		run.Attempts = []*recordv1.Attempt{{Number: 1, Node: "n1", Placement: 1}}
	})
	w := r.logOf("r.web.a", 1)
	write(w, logs.Stdout, "first try\n")
	w.End(true)
	got, err := r.logs(&errandv1.LogsRequest{Id: "r.web.a", Attempt: 1, Follow: true})
	if err != nil || got.stdout.String() != "first try\n" || !got.end.GetComplete() {
		t.Errorf("got %+v, %v", got, err)
	}
	_, err = r.logs(&errandv1.LogsRequest{Id: "r.web.a", Attempt: 3})
	wantCode(t, err, codes.AttemptNotFound)
}

func TestLogsOfAnotherNodeNameIt(t *testing.T) {
	r := newRig(t)
	r.put("r.web.a", placed("n7", 1))
	for _, follow := range []bool{false, true} {
		_, err := r.logs(&errandv1.LogsRequest{Id: "r.web.a", Follow: follow})
		wantCode(t, err, codes.LogElsewhere)
		if err == nil || !strings.Contains(err.Error(), "node n7") {
			t.Errorf("text: %v", err)
		}
	}
}

func TestLogsRefuseBadRequests(t *testing.T) {
	r := newRig(t)
	r.put("r.web.a", nil)
	for name, request := range map[string]*errandv1.LogsRequest{
		"attempt below 0":       {Attempt: -1},
		"offset below 0":        {Offset: -1},
		"tail below 0":          {TailLines: -1},
		"tail with an offset":   {TailLines: 1, Offset: 1},
		"since that is no time": {Since: &timestamppb.Timestamp{Nanos: -1}},
	} {
		request.Id = "r.web.a"
		_, err := r.logs(request)
		if err == nil {
			t.Errorf("%s: taken", name)
			continue
		}
		wantCode(t, err, codes.InvalidField)
	}
}

// unreadable is a disk that fails.
type unreadable struct{}

func (unreadable) Open(context.Context, api.LogRequest) (api.LogReader, error) {
	return unreadable{}, nil
}

func (unreadable) Next(context.Context) (api.LogBatch, error) {
	return api.LogBatch{}, &diskError{}
}

func (unreadable) Close() error { return nil }

type diskError struct{}

func (*diskError) Error() string { return "input/output error" }

func TestLogsThatCanNotBeReadSaySo(t *testing.T) {
	r := newRig(t, func(config *api.Config) { config.Logs = unreadable{} })
	r.put("r.web.a", placed("n1", 1))
	for _, follow := range []bool{false, true} {
		_, err := r.logs(&errandv1.LogsRequest{Id: "r.web.a", Follow: follow})
		wantCode(t, err, codes.LogUnreadable)
	}
}
