package store

import (
	"testing"
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
