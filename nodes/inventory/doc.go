// Package inventory finds all that the sandboxes of a node have on its machine: by the
// kernel's files, containerd's and the runtime's own, and never by asking the node, whose
// knowledge it is compared with. The daemon takes one when it is asked what is left on it
// (NodeService.Check), and the tests take one from outside when all runs have ended.
//
// An inventory is no moment's truth: sandboxes come and go while it is taken. Who finds
// something in it that should not be there looks again before he says so.
//
// What belongs to a node is told by its data directory, by its cgroup, and, in a
// containerd that several use, by the node's label and the cgroup that the runtime was
// given. Logs are kept on purpose and are not in it.
package inventory
