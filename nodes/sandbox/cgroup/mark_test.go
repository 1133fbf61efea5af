package cgroup

import (
	"context"
	"testing"
)

func TestMarkOfAGroupIsItsOwnAndGoesWithIt(t *testing.T) {
	p := parent(t)
	marked, plain := p.Group("marked"), p.Group("plain")
	for _, g := range []*Group{marked, plain} {
		if err := g.Create(Limits{Pids: 10}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := g.Remove(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	if err := marked.Unfence(); err != nil {
		t.Fatal(err)
	}
	if !p.Group("marked").Unfenced() || plain.Unfenced() {
		t.Errorf("marked %t, plain %t", p.Group("marked").Unfenced(), plain.Unfenced())
	}
	if err := marked.Remove(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if marked.Unfenced() {
		t.Error("a group that is gone is marked")
	}
	if err := marked.Create(Limits{}); err != nil || marked.Unfenced() {
		t.Errorf("another of its name: %v, marked %t", err, marked.Unfenced())
	}
}

func TestGroupThatIsNotThereCanNotBeMarked(t *testing.T) {
	if err := parent(t).Group("absent").Unfence(); err == nil {
		t.Error("no error")
	}
}
