package api_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// reader reads a stream of changes.
type reader struct {
	t        testing.TB
	stream   *connect.ServerStreamForClient[errandv1.RunChangesResponse]
	position string
	waiting  []*errandv1.RunChange
	leave    context.CancelFunc
}

// changes begins a stream and reads where it begins.
func (r *rig) changes(request *errandv1.RunChangesRequest) *reader {
	r.t.Helper()
	ctx, leave := context.WithCancel(r.ctx)
	stream, err := r.runs.Changes(ctx, request)
	if err != nil {
		r.t.Fatal(err)
	}
	c := &reader{t: r.t, stream: stream, leave: leave}
	r.t.Cleanup(c.close)
	c.receive()
	return c
}

func (c *reader) close() {
	c.leave()
	_ = c.stream.Close()
}

func (c *reader) receive() {
	c.t.Helper()
	if !c.stream.Receive() {
		c.t.Fatalf("the stream ended: %v", c.stream.Err())
	}
	c.position = c.stream.Msg().GetPosition()
	c.waiting = append(c.waiting, c.stream.Msg().GetChanges()...)
}

func (c *reader) next() string {
	c.t.Helper()
	for len(c.waiting) == 0 {
		c.receive()
	}
	change := c.waiting[0]
	c.waiting = c.waiting[1:]
	text := change.GetRun().GetId() + " " + strings.TrimPrefix(change.GetRun().GetStatus().String(), "STATUS_")
	if change.GetDeleted() {
		text = change.GetRun().GetId() + " deleted"
	}
	return text
}

func (c *reader) want(texts ...string) {
	c.t.Helper()
	for _, text := range texts {
		if got := c.next(); got != text {
			c.t.Fatalf("got %q, want %q", got, text)
		}
	}
}

// refused is why a stream ends from a position on.
func (r *rig) refused(position string) error {
	r.t.Helper()
	stream, err := r.runs.Changes(r.ctx, &errandv1.RunChangesRequest{Position: position})
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
	}
	return stream.Err()
}

func running(run *recordv1.Run) { run.Status = recordv1.Status_STATUS_RUNNING }

func TestChangesTellsEveryChangeInOrder(t *testing.T) {
	r := newRig(t)
	r.put("r.web.before", nil)
	all := r.changes(&errandv1.RunChangesRequest{})
	web := r.changes(&errandv1.RunChangesRequest{App: "web"})
	named := r.changes(&errandv1.RunChangesRequest{Name: "nightly", Labels: map[string]string{"team": "a"}})
	r.put("r.web.a", func(run *recordv1.Run) { run.Name, run.Labels = "nightly", map[string]string{"team": "a"} })
	r.put("r.shop.b", func(run *recordv1.Run) { run.Name = "nightly" })
	r.update("r.web.a", running)
	r.end("r.shop.b", recordv1.Status_STATUS_FAILED, 7000)
	r.end("r.web.a", recordv1.Status_STATUS_SUCCEEDED, 7000)
	r.retire("r.web.a")
	all.want("r.web.a PENDING", "r.shop.b PENDING", "r.web.a RUNNING", "r.shop.b FAILED", "r.web.a SUCCEEDED", "r.web.a deleted")
	web.want("r.web.a PENDING", "r.web.a RUNNING", "r.web.a SUCCEEDED", "r.web.a deleted")
	named.want("r.web.a PENDING", "r.web.a RUNNING", "r.web.a SUCCEEDED", "r.web.a deleted")
}

func TestChangesGoesOnWhereAReaderWas(t *testing.T) {
	r := newRig(t)
	list, err := r.runs.List(r.ctx, &errandv1.ListRunsRequest{})
	if err != nil || list.GetPosition() == "" {
		t.Fatal(list, err)
	}
	r.put("r.web.a", nil)
	r.put("r.shop.b", nil)
	first := r.changes(&errandv1.RunChangesRequest{Position: list.GetPosition()})
	first.want("r.web.a PENDING", "r.shop.b PENDING")
	first.close()
	r.update("r.web.a", running)
	r.update("r.shop.b", running)
	second := r.changes(&errandv1.RunChangesRequest{Position: first.position, App: "shop"})
	second.want("r.shop.b RUNNING")
	t.Run("on a node that has just started", func(t *testing.T) {
		other := r.another(nil)
		third := other.changes(&errandv1.RunChangesRequest{Position: first.position})
		r.end("r.web.a", recordv1.Status_STATUS_SUCCEEDED, 7000)
		third.want("r.web.a RUNNING", "r.shop.b RUNNING", "r.web.a SUCCEEDED")
	})
	t.Run("from the store's own revision, before its change is heard", func(t *testing.T) {
		list, err := r.runs.List(r.ctx, &errandv1.ListRunsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		last := r.changes(&errandv1.RunChangesRequest{Position: list.GetPosition()})
		r.end("r.shop.b", recordv1.Status_STATUS_FAILED, 7000)
		last.want("r.shop.b FAILED")
	})
}

func TestChangesRefusesAPositionFromWhichItCanPromiseNothing(t *testing.T) {
	r := newRig(t)
	r.put("r.web.a", nil)
	at := r.changes(&errandv1.RunChangesRequest{}).position
	store, _, _ := strings.Cut(at, ".0.")
	cases := []struct {
		name, position string
		code           codes.Code
	}{
		{"rubbish", "rubbish", codes.InvalidField},
		{"no revision", store + ".0.x", codes.InvalidField},
		{"another store's", "zzzzzzzz.1.7", codes.ListAgain},
		{"an older copy's", store + ".1.7", codes.ListAgain},
		{"from the future", store + ".0.999999999", codes.ListAgain},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { wantCode(t, r.refused(c.position), c.code) })
	}
}

// awayStore loses the past.
type awayStore struct {
	*tapStore
	past  atomic.Int64
	err   error
	floor int64
}

func (s *awayStore) Past(ctx context.Context, prefix string, after, until int64, limit int) ([]records.Event, int64, error) {
	s.past.Add(1)
	if s.err != nil {
		return nil, 0, s.err
	}
	return s.tapStore.Past(ctx, prefix, max(after, s.floor), until, limit)
}

func TestChangesOfAPastThatIsGone(t *testing.T) {
	r := newRig(t)
	at := r.changes(&errandv1.RunChangesRequest{}).position
	r.put("r.web.a", nil)
	_, mod := r.record("r.web.a")
	t.Run("is to be listed again when it is compacted", func(t *testing.T) {
		store := &awayStore{tapStore: r.store, floor: mod}
		other := r.another(store)
		for range 5 {
			wantCode(t, other.refused(at), codes.ListAgain)
		}
		if got := store.past.Load(); got != 1 {
			t.Errorf("%d looks into the past for 5 readers", got)
		}
	})
	t.Run("is told later when the store is away", func(t *testing.T) {
		store := &awayStore{tapStore: r.store, err: records.Errorf(records.ClassUnavailable, "away")}
		other := r.another(store)
		wantCode(t, other.refused(at), codes.StoreUnavailable)
		store.err = nil
		other.changes(&errandv1.RunChangesRequest{Position: at}).want("r.web.a PENDING")
	})
}

func TestChangesKeepsAQuietReaderInformed(t *testing.T) {
	r := newRig(t)
	quiet := r.another(nil)
	quiet.server.SetQuiet(20 * time.Millisecond)
	reader := quiet.changes(&errandv1.RunChangesRequest{App: "web"})
	before := reader.position
	for i := range 5 {
		r.put(fmt.Sprintf("r.shop.%d", i), nil)
	}
	for reader.position == before {
		reader.receive()
	}
	if len(reader.waiting) != 0 {
		t.Errorf("was told of %v", reader.waiting)
	}
}

func TestAThousandReadersCostOneFollowAndNoReads(t *testing.T) {
	r := newRig(t)
	readers := make([]*reader, 100)
	for i := range readers {
		readers[i] = r.changes(&errandv1.RunChangesRequest{})
	}
	before := r.store.count.Load()
	for i := range 10 {
		r.put(fmt.Sprintf("r.web.%d", i), nil)
	}
	for _, reader := range readers {
		for i := range 10 {
			reader.want(fmt.Sprintf("r.web.%d PENDING", i))
		}
	}
	if got := r.store.count.Load() - before; got != 0 {
		t.Errorf("%d reads", got)
	}
	if got := r.store.follows.Load(); got != 1 {
		t.Errorf("%d follows", got)
	}
}
