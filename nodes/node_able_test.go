package nodes

import (
	"errors"
	"testing"
)

// A node that others reach and that does not reach the store would keep the actors
// that rank it first for ever.
func TestNodeCarriesActorsOnlyInASession(t *testing.T) {
	for _, test := range []struct {
		name   string
		status Status
		want   error
	}{
		{"it has not looked yet", Status{}, errNew},
		{"started without the store", Status{Phase: PhaseAdopted}, errNew},
		{"fenced before this life had a session", Status{Phase: PhaseAdopted, Fenced: true}, errFenced},
		{"the session is over", Status{Phase: PhaseAnnounced, Session: 7, Fenced: true}, errFenced},
		{"in a session", Status{Phase: PhaseRegistered, Session: 7}, nil},
		{"draining", Status{Phase: PhaseAnnounced, Session: 7, Draining: true}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			node := &Node{}
			node.status.Store(&test.status)
			if err := node.able(); !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}
