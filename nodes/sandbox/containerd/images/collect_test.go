package images_test

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images"
)

const day = 24 * time.Hour

func TestCollectionKeepsWhatIsInUseFreshOrNotOurs(t *testing.T) {
	now := time.Now()
	store, client := fresh(t, images.Config{Now: func() time.Time { return now }})
	r := newRegistry(t, false)
	names := map[string]string{}
	for _, repository := range []string{"old", "held", "running", "used"} {
		name, _ := served(t, r, repository, 40_000)
		names[repository] = name
		if err := pull(t, store, name); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := store.Import(shortly(t), "", bytes.NewReader(archive(t, small("imported:1")))); err != nil {
		t.Fatal(err)
	}
	_, err := client.ContainerService().Create(shortly(t), containers.Container{
		ID: "c", Image: names["running"], Runtime: containers.RuntimeInfo{Name: "io.containerd.runc.v2"}, Spec: &anypb.Any{},
	})
	if err != nil {
		t.Fatal(err)
	}
	collect := func(bounds images.Bounds) []string {
		t.Helper()
		got, err := store.Collect(shortly(t), bounds)
		if err != nil {
			t.Fatal(err)
		}
		return got.Removed
	}
	if got := collect(images.Bounds{AgeMax: time.Second, BytesMax: 1}); len(got) > 0 {
		t.Errorf("collected %v right after they were pulled", got)
	}
	release := store.Hold(names["held"])
	now = now.Add(20 * day)
	store.Hold(names["used"])() // used, and the note of it written down
	if got := collect(images.Bounds{}); len(got) > 0 {
		t.Errorf("collected %v after 20 days", got)
	}
	now = now.Add(11 * day)
	if got := collect(images.Bounds{}); !slices.Equal(got, []string{names["old"]}) {
		t.Errorf("collected %v after 31 days, want %s", got, names["old"])
	}
	if got := collect(images.Bounds{AgeMax: -1, BytesMax: 1}); !slices.Equal(got, []string{names["used"]}) {
		t.Errorf("collected %v for size, want %s", got, names["used"])
	}
	if _, err := store.Remove(shortly(t), names["held"]); records.ClassOf(err) != records.ClassConflict {
		t.Errorf("an image that a sandbox is being made of was removed: %v", err)
	}
	release()
	list, err := store.List(shortly(t))
	if err != nil || len(list) != 3 {
		t.Errorf("left are %+v, %v", list, err)
	}
	// A sandbox that does not run goes in a moment, and its image may go then.
	removed := make(chan error, 1)
	go func() {
		_, err := store.Remove(shortly(t), names["running"])
		removed <- err
	}()
	select {
	case err := <-removed:
		t.Errorf("an image of a sandbox that is not gone yet: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	if err := client.ContainerService().Delete(shortly(t), "c"); err != nil {
		t.Error(err)
	}
	if err := <-removed; err != nil {
		t.Errorf("an image that nothing is made of any more was not removed: %v", err)
	}
}

func TestCollectionForSizeTakesWhatWasUsedLongestAgo(t *testing.T) {
	now := time.Now()
	store, _ := fresh(t, images.Config{Now: func() time.Time { return now }})
	r := newRegistry(t, false)
	var names []string
	for _, repository := range []string{"a", "b", "c"} {
		name, _ := served(t, r, repository, 1<<20)
		names = append(names, name)
		if err := pull(t, store, name); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{names[1], names[2], names[0]} {
		now = now.Add(time.Hour)
		store.Hold(name)()
	}
	now = now.Add(time.Hour)
	all, err := store.Collect(shortly(t), images.Bounds{})
	if err != nil || len(all.Removed) > 0 || all.Bytes < 6<<20 {
		t.Fatalf("collected %+v, %v; each has 1 MiB twice", all, err)
	}
	got, err := store.Collect(shortly(t), images.Bounds{BytesMax: all.Bytes - 1})
	if err != nil || !slices.Equal(got.Removed, []string{names[1]}) || got.Bytes >= all.Bytes {
		t.Errorf("collected %+v, %v", got, err)
	}
	list, err := store.List(shortly(t))
	if err != nil || len(list) != 2 || list[0].Used.IsZero() {
		t.Errorf("left are %+v, %v", list, err)
	}
}

func TestAnImageThatIsImportedOverAPulledOneIsNotCollected(t *testing.T) {
	now := time.Now()
	store, _ := fresh(t, images.Config{Now: func() time.Time { return now }})
	r := newRegistry(t, false)
	name, _ := served(t, r, "a", 1000)
	if err := pull(t, store, name); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Import(shortly(t), name, bytes.NewReader(archive(t, small("x:1")))); err != nil {
		t.Fatal(err)
	}
	now = now.Add(100 * day)
	if got, err := store.Collect(shortly(t), images.Bounds{BytesMax: 1}); err != nil || len(got.Removed) > 0 {
		t.Errorf("collected %+v, %v", got, err)
	}
}
