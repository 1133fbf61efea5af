// Package nodes is one machine of the cluster: it takes assignments, runs each in
// a sandbox at most once, and tells how it ended until that is known to be
// durable.
//
// The story of a placement, the attempt of a run on this node: Reserve holds room
// for it. Its assignment arrives twice, as a Start from the run's actor and
// through the watch, and is taken once. A sandbox is created; the journal durably
// says "starting" before the driver is asked to start the command, so that after
// any crash the answer to "may it have run?" is on the disk. The exit is
// journaled when it is seen; then the sandbox's processes are killed to the last,
// its log is flushed, and the exit is told to the run until it acknowledges. The
// entry is forgotten only when the acknowledged outcome has also been seen by this
// node's watch and nothing of the sandbox is left. A placement that never started
// ends with a void in the same way.
//
// The machine in this package decides all of that and does no I/O; the ports say
// what it needs, and subpackages are their adapters: journal (a file that is appended to), pool
// (sandbox drivers), clock. New assembles a node out of ports; it is the only way
// to do so, in production and in simulation.
package nodes
