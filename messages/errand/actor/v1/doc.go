// Package actorv1 holds what actors tell each other, on one node and between
// nodes: how a run asks nodes for room, gives one an assignment and ends it, and
// how a node tells what became of it.
//
// Each message may be lost, doubled or late. What must not be lost is told until it
// is acknowledged; whoever hears is idempotent.
package actorv1
