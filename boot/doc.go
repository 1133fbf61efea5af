// Package boot assembles a node from its parts with fx, in the order in which
// they may come up and the reverse in which they must go down:
//
//	cluster access   the API's address and the store
//	node storage     the journal and what it says of before
//	sandbox host     drivers; survivors of the last daemon are adopted
//	sandbox agent    the session; assignments begin to be carried out
//	node presence    only now is room offered and the API served
//
// Each part has a name and a deadline of its own for start and stop. A start that
// fails takes down what had started, and its error names the part. Stopping a
// node leaves its sandboxes alone: they go on, and the next daemon adopts them.
//
// Node is an fx.Option, so a larger service can include a node in its own graph;
// the daemon is that option and a configuration.
package boot
