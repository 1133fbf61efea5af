package nodes

import (
	"testing"

	"github.com/errand-run/errand/nodes/sandbox"
)

func TestStrangeSandboxIsStoppedAndKeptInQuarantine(t *testing.T) {
	for name, spoil := range map[string]func(*labBox){
		"without a start token": func(b *labBox) { b.token = nil },
		"without a spec hash":   func(b *labBox) { b.hash = nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStation(t)
			id := s.withOrphan()
			spoil(s.boxes[id])
			s.restart()
			for range 5 {
				s.pass(OrphanConfirm)
				s.settle()
			}
			if b := s.boxes[id]; b == nil || b.alive || b.state == sandbox.StateCreated {
				t.Fatalf("it is not stopped and kept: %+v", b)
			}
			s.pass(QuarantineHold)
			s.settle()
			if s.boxes[id] != nil {
				t.Error("it is still there after a day")
			}
		})
	}
}
