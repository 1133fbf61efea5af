package virtual

import (
	"slices"
	"testing"
	"time"
)

func TestTimelineKeepsTheOrderOfTimeThenOfSetting(t *testing.T) {
	var line Timeline
	var got []string
	note := func(s string) func() { return func() { got = append(got, s) } }
	line.After(2*time.Second, note("late"))
	line.After(time.Second, note("first"))
	stop := line.After(time.Second, note("stopped"))
	line.After(time.Second, func() {
		got = append(got, "second")
		line.After(0, note("now"))
	})
	stop()
	stop()
	for line.Next() {
	}
	if want := []string{"first", "second", "now", "late"}; !slices.Equal(got, want) || line.Now() != 2*time.Second {
		t.Errorf("got %v at %v, want %v", got, line.Now(), want)
	}
}

func TestStreamsOfOneSeedAreTheSameAndIndependent(t *testing.T) {
	a, b, other := Streams{7}.Of("network"), Streams{7}.Of("network"), Streams{7}.Of("store")
	first := a.Uint64()
	if first != b.Uint64() {
		t.Error("the same name gave another stream")
	}
	if first == other.Uint64() {
		t.Error("two names gave one stream")
	}
}
