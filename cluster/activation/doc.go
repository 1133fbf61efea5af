// Package activation keeps virtual actors: addressed by kind and identity, always
// there to be told something, in memory only while they have something to do.
//
// One activator actor owns the map from addresses to live actors, so nothing here
// locks and the order of everything follows from the order of messages. The first
// message for an address spawns its actor; an actor that is idle offers to end
// (Passivate); a message that comes while it ends waits for the next activation.
// At most one activation of an address exists on a node at any time. Over a
// cluster there may be two for a while, which the store's compare-and-swap makes
// harmless (guarantee G1).
//
// In front of delivery stands the question which node an address lives on. Virtual
// kinds are placed by Options.Owner, pinned kinds live where their identity says.
// This package delivers on its own node; what belongs to another is refused.
package activation
