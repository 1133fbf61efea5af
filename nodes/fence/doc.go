// Package fence keeps the deadline of a node's session where it outlives the daemon,
// and kills the node's sandboxes when it has passed.
//
// A node that others could take for lost may run its sandboxes only while its session
// lasts (protocol.md section 6). The daemon writes until when that is into a File: one
// page of memory on a file system that does not outlive the boot. A Guard, a process of
// its own, reads it and empties the node's cgroup once the deadline is over, whether
// the daemon is alive, dead or stopped. It needs neither the store, nor a runtime, nor
// a disk.
//
// Deadline and latch are one word, changed by compare and swap only: the daemon moves
// the deadline of a session that nobody has fenced, and whoever finds it over sets the
// latch. So a deadline is never moved that somebody has begun to kill by, and nobody
// kills by a deadline that was moved: either the daemon sees the latch or the guard
// sees the new deadline.
//
// A sandbox whose run waits for its node (on_node_loss) has no fence either: its group is
// marked as unfenced before anything of it is started, and nobody places its run anew.
//
// A node that is alone in its cluster has none at all.
package fence
