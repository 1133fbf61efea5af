package store

import (
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/errand-run/errand/cluster/records"
)

func TestProbeTellsABusyWatchFromASilentOne(t *testing.T) {
	const asked = 100
	cases := []struct {
		name string
		// since the probe began
		hears    func(f *follow, s *stream)
		spared   int
		isSilent bool
	}{
		{"nothing came at all", func(*follow, *stream) {}, 0, true},
		{"others on the stream heard something", func(_ *follow, s *stream) { s.heard.Add(1) }, 0, false},
		{"the watch itself moved on", func(f *follow, s *stream) { f.position.Add(1); s.heard.Add(1) }, 0, false},
		{"others were told that all is said", func(_ *follow, s *stream) { s.heard.Add(1); s.progress.Store(asked) }, 0, true},
		{"the watch still takes what it was told before that", func(f *follow, s *stream) { f.position.Add(1); s.heard.Add(1); s.progress.Store(asked) }, 0, false},
		{"others heard something, too many times", func(_ *follow, s *stream) { s.heard.Add(1) }, sparedMax, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f, s := &follow{}, &stream{}
			f.position.Store(asked - 10)
			s.heard.Store(7)
			l := listener{follow: f, watch: &watch{stream: s, spared: c.spared}, position: f.position.Load(), heard: s.heard.Load()}
			c.hears(f, s)
			if got := l.silent(asked); got != c.isSilent {
				t.Errorf("silent: %v, want %v", got, c.isSilent)
			}
		})
	}
}

func TestStreamsKeepFoldersApartFromKeys(t *testing.T) {
	var s streams
	folder := s.pick("p/")
	keys := map[*stream]bool{}
	for range 3 * keyStreams {
		keys[s.pick("p/k")] = true
	}
	if keys[folder] || len(keys) != keyStreams || s.pick("q/") != folder {
		t.Fatalf("%d streams of keys, that of folders among them: %v", len(keys), keys[folder])
	}
	s.drop(folder)
	if again := s.pick("p/"); again == folder || again.name == folder.name {
		t.Error("a stream that was dropped is handed out")
	}
	for range keyStreams {
		if !keys[s.pick("p/k")] {
			t.Error("a stream of keys was dropped with that of the folders")
		}
	}
}

// The server's word that it takes no writes lasts; the store takes it back when there is
// room again.
func TestTroubleOfAnEmbeddedStoreThatIsAsLargeAsItMayBe(t *testing.T) {
	s := openEmbedded(t)
	quota := &s.space.held.quota
	quota.Store(1)
	if err := s.Trouble(); err != nil {
		t.Fatalf("at first: %v", err)
	}
	server := s.embedded.server.Server
	request := &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: uint64(server.MemberID()), Alarm: pb.AlarmType_NOSPACE}
	if _, err := server.Alarm(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if err := eventually(t, s, records.ClassUnavailable); !strings.Contains(err.Error(), "takes no writes") {
		t.Errorf("a run: %v", err)
	}
	if _, err := s.Do(t.Context(), putTxn("k", "1")); records.ClassOf(err) != records.ClassUnavailable {
		t.Errorf("the end of a run: %v", err)
	}
	if err := s.Trouble(); records.ClassOf(err) != records.ClassUnavailable || !strings.Contains(err.Error(), "takes no writes") {
		t.Errorf("the trouble is %v", err)
	}
	quota.Store(QuotaDefault)
	_ = eventually(t, s, records.ClassInternal)
	if err := s.Trouble(); err != nil {
		t.Errorf("in the end: %v", err)
	}
}
