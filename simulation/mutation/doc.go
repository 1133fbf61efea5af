// Package mutation breaks Errand on purpose, one protection at a time, so that the
// checkers can show that they would see it. A mutation changes what passes between a
// node and the models around it; production code has no switch for it. The table
// says which guarantee must fall and within how many seeds.
package mutation

import (
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	"github.com/errand-run/errand/nodes"
)

// Seat is a daemon that is about to be assembled.
type Seat struct {
	Node string
	// Ports are the daemon's; a mutation puts others in their place.
	Ports *nodes.Ports
	// Receive hands the daemon a packet as if a node had sent it.
	Receive func(from string, packet *actorv1.Packet)
}
