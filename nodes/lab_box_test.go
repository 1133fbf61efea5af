package nodes

import (
	"crypto/sha256"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// labBox is a sandbox that survives the node's process.
type labBox struct {
	run                string
	attempt, placement int32
	starts             int
	state              sandbox.State
	exit               sandbox.Exit
	// alive is the main process and whatever it has left behind.
	alive bool
	// deaf boxes go on when they get TERM.
	deaf bool
	// token and hash are what it carries.
	token, hash []byte
	// unfenced boxes are marked as such for the guard.
	unfenced bool
	// trace boxes are only traces of one; stuck ones can not be removed.
	trace, stuck bool
}

// strayBox is a sandbox of a run with a spec that was made by somebody whom no journal
// remembers.
func strayBox(run string, spec *recordv1.Spec) *labBox {
	hash := sha256.Sum256(records.Encode(spec))
	return &labBox{
		run: run, attempt: 1, placement: 1, state: sandbox.StateRunning, alive: true, token: []byte("a token"), hash: hash[:],
	}
}
