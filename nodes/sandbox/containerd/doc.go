// Package containerd runs each sandbox as one container of containerd.
//
// # Who sees the end
//
// The container's PID 1 is our own init (cmd/sandbox-init), bind-mounted read-only.
// It leaves what became of the command in a small status file of the node, bind-
// mounted beside it. containerd's shim sees init's code. The two witnesses are heard
// together, by the table at outcome: containerd alone makes up a code (137) for a
// process that it lost, and says "exit code 1" of a command that never ran.
//
// The order of an end is: Wait reads both witnesses and the count of OOM kills while
// the cgroup still exists; the node writes that down; Kill, Flush and Remove follow.
//
// # What a sandbox leaves on the node
//
// Everything carries the sandbox's id: the container, its snapshot and lease in our
// namespace, the cgroup below the node's parent, and a directory with
//
//	sandbox.json   what List and Flush need to know of it
//	status         init's status file, owned by the command's user
//	logger.*       the logger's socket and pid (package nodes/logs/logger)
//
// The directory is made first and removed last, so what has none is not ours, and a
// sandbox whose container somebody deleted is still found. Container, snapshot and
// lease carry labels too (run, attempt, placement, node, start token, spec hash):
// several nodes may share one containerd, and each lists and removes only its own.
//
// # Who installs the seccomp filter
//
// The runtime does for the first sandbox of a driver. What it has compiled is read back
// from the kernel (package filter), and init installs it in all later ones, in itself
// and so in the command: compiling it is a sixth of the processor time of a short
// sandbox. Where the kernel does not tell the filter the runtime compiles it for each. A
// process that is added to a sandbox later is under no filter of the runtime's and must
// come in through init too.
//
// # What may be shown
//
// The runtime's error texts may quote the environment. Nothing of them passes but a
// closed list of phrases (see failure.go); all that can be known in advance is checked
// in advance, with errors that name places and no values.
//
// # What outlives what
//
// Sandboxes go on when the daemon or containerd ends or is started again; a call to a
// containerd that is away fails with records.ClassUnavailable, and Wait goes on
// waiting. A shim that is lost takes its sandbox along; what init had left by then is
// the outcome.
package containerd
