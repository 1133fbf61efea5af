// Package placement says which node an actor belongs to.
//
// Nobody decides it and nothing is agreed on: an actor's kind and identity are
// hashed to one of 1024 buckets, and each node ranks the nodes of its own presence
// view for that bucket by rendezvous hashing. Nodes with the same view therefore
// come to the same ranking, and a node that joins or leaves moves only the buckets
// that become or were its own. Views may differ, even for good: then an actor is
// active twice for a while, which the store's compare-and-swap makes harmless.
//
// Hashes are part of what nodes of different versions must agree on: golden vectors
// in the tests hold them fast.
package placement
