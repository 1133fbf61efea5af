package api

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

const hubRun = "r.web.one"

// hubStore is a store of one run whose changes are told when the test says so.
type hubStore struct {
	keys    records.Keys
	mod     int64
	gone    bool
	reads   int
	follows int
	stops   int
	deliver func(records.Batch)
	// reading is called while a read is answered with what was there before it.
	reading func()
	failing int
}

func (s *hubStore) FollowChanges(_ string, deliver func(records.Batch)) (stop func()) {
	s.follows++
	s.deliver = deliver
	return func() { s.stops++ }
}

func (s *hubStore) kv() records.KV {
	run := &recordv1.Run{Id: hubRun, App: "web", Status: recordv1.Status_STATUS_RUNNING, Attempt: int32(s.mod), Spec: &recordv1.Spec{}}
	return records.KV{Key: s.keys.Run(hubRun), Value: records.Encode(run), Mod: s.mod, Create: 1}
}

func (s *hubStore) Do(_ context.Context, txn records.Txn) (records.Result, error) {
	s.reads++
	if s.failing > 0 {
		s.failing--
		return records.Result{}, records.Errorf(records.ClassUnavailable, "away")
	}
	result := records.Result{Succeeded: true, Revision: s.mod}
	for range txn.Then {
		var response records.OpResult
		if !s.gone {
			response.KVs = []records.KV{s.kv()}
		}
		result.Responses = append(result.Responses, response)
	}
	if s.reading != nil {
		s.reading()
	}
	return result, nil
}

func (s *hubStore) Scan(ctx context.Context, _ records.Scan) ([]records.KV, error) {
	result, err := s.Do(ctx, records.Read(records.Get(s.keys.Run(hubRun))))
	kv, found := result.First(0)
	if err != nil || !found {
		return nil, err
	}
	return []records.KV{kv}, nil
}

func (s *hubStore) Past(context.Context, string, int64, int64, int) ([]records.Event, int64, error) {
	return nil, 0, records.Errorf(records.ClassUnavailable, "away")
}

// change makes another state and tells of it, unless the watch has missed it.
func (s *hubStore) change(missed bool) {
	s.mod++
	if !missed {
		s.deliver(records.Batch{Revision: s.mod, Events: []records.Event{{KV: s.kv()}}})
	}
}

func (s *hubStore) reset() { s.deliver(records.Batch{Reset: true, Revision: s.mod}) }

func newHubServer(t *testing.T) (*Server, *hubStore) {
	t.Helper()
	keys := records.Keys{Root: records.RootDefault, Shards: 4}
	store := &hubStore{keys: keys, mod: 10}
	s := &Server{config: Config{Store: store, Keys: keys}, watches: newHub(store, keys.Runs())}
	t.Cleanup(s.watches.close)
	return s, store
}

func nextWithin(t *testing.T, w *runWatch, d time.Duration) (foundRun, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	return w.next(ctx)
}

func wantState(t *testing.T, w *runWatch, mod int64) {
	t.Helper()
	if got, err := nextWithin(t, w, 2*time.Minute); err != nil || got.at.Mod != mod {
		t.Fatalf("the state at %d, %v, want that at %d", got.at.Mod, err, mod)
	}
}

func wantNothing(t *testing.T, w *runWatch) {
	t.Helper()
	if got, err := nextWithin(t, w, 10*time.Millisecond); err == nil {
		t.Fatalf("the state at %d again", got.at.Mod)
	}
}

func TestAThousandWatchesCostOneFollowAndNoReads(t *testing.T) {
	s, store := newHubServer(t)
	var watches []*runWatch
	for range 1000 {
		_, w, err := s.findAndWatch(t.Context(), hubRun)
		if err != nil {
			t.Fatal(err)
		}
		watches = append(watches, w)
		if len(watches) == 1 {
			store.reset()
			wantNothing(t, w)
		}
	}
	reads := store.reads
	store.change(false)
	for _, w := range watches {
		wantState(t, w, 11)
		w.stop()
	}
	if store.follows != 1 || store.reads != reads || reads > 1002 {
		t.Errorf("%d follows, %d reads, %d of them after the first state", store.follows, store.reads, store.reads-reads)
	}
	s.watches.rest()
	if store.stops != 1 || len(s.watches.watches) != 0 {
		t.Errorf("%d stops, %d runs are still watched", store.stops, len(s.watches.watches))
	}
}

func TestAWatchMissesNothing(t *testing.T) {
	for name, test := range map[string]func(*testing.T, *Server, *hubStore){
		"while the first state is read": func(t *testing.T, s *Server, store *hubStore) {
			store.reading = func() {
				store.reading = nil
				store.change(false)
			}
			found, w, err := s.findAndWatch(t.Context(), hubRun)
			if err != nil || found.at.Mod != 10 {
				t.Fatalf("found the state at %d, %v", found.at.Mod, err)
			}
			wantState(t, w, 11)
		},
		"before it joins": func(t *testing.T, s *Server, store *hubStore) {
			found, err := s.find(t.Context(), hubRun)
			if err != nil {
				t.Fatal(err)
			}
			store.change(true)
			wantState(t, s.watchRun(found), 11)
		},
		"before the changes are followed": func(t *testing.T, s *Server, store *hubStore) {
			s.watches.end()
			_, w, err := s.findAndWatch(t.Context(), hubRun)
			if err != nil {
				t.Fatal(err)
			}
			store.change(true)
			store.reset()
			wantState(t, w, 11)
		},
		"while the store is away": func(t *testing.T, s *Server, store *hubStore) {
			_, w, err := s.findAndWatch(t.Context(), hubRun)
			if err != nil {
				t.Fatal(err)
			}
			store.change(true)
			store.failing = 1
			store.reset()
			wantState(t, w, 11)
			wantNothing(t, w)
		},
		"when the run is deleted meanwhile": func(t *testing.T, s *Server, store *hubStore) {
			_, w, err := s.findAndWatch(t.Context(), hubRun)
			if err != nil {
				t.Fatal(err)
			}
			store.gone = true
			store.reset()
			if _, err := nextWithin(t, w, 2*time.Minute); err == nil || !strings.Contains(err.Error(), "was deleted") {
				t.Errorf("got %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, store := newHubServer(t)
			// Somebody else has the changes followed.
			_, other, err := s.findAndWatch(t.Context(), hubRun)
			if err != nil {
				t.Fatal(err)
			}
			defer other.stop()
			store.reset()
			test(t, s, store)
		})
	}
}

func TestAWatchOfAnEarlierFollowIsNotHeard(t *testing.T) {
	s, store := newHubServer(t)
	_, w, err := s.findAndWatch(t.Context(), hubRun)
	if err != nil {
		t.Fatal(err)
	}
	earlier := store.deliver
	s.watches.end()
	s.watches.join(w)
	earlier(records.Batch{Reset: true, Revision: store.mod})
	if s.watches.live {
		t.Error("the Reset of a follow that has ended passes for that of the next")
	}
}

func TestAListenerIsToldToListAgainWhenChangesMayHaveBeenMissed(t *testing.T) {
	for name, c := range map[string]struct {
		// behind has a change wait for the listener when it happens.
		behind bool
		// step is how far the store's revision has moved meanwhile.
		step int64
	}{"while it waits": {false, 1}, "while it is behind": {true, 1}, "by a store that is not as far": {false, -5}} {
		t.Run(name, func(t *testing.T) {
			s, store := newHubServer(t)
			s.watches.mu.Lock()
			s.watches.begin()
			s.watches.mu.Unlock()
			store.reset()
			l, err := s.watches.listen(t.Context(), "web", 0)
			if err != nil {
				t.Fatal(err)
			}
			defer l.leave()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			if c.behind {
				store.change(false)
			} else if _, _, err := l.next(ctx, time.Millisecond); err != nil {
				t.Fatal(err)
			}
			store.mod += c.step
			store.reset()
			if changes, _, err := l.next(ctx, time.Minute); err == nil || !strings.Contains(err.Error(), "list again") {
				t.Errorf("was told of %d changes, %v", len(changes), err)
			}
		})
	}
}
