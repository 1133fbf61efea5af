// Package private runs a containerd that belongs to one node alone.
//
// Where no containerd runs, the node starts one: root, state, log and
// configuration below a directory of the node, without the CRI plugin and the
// snapshotters that are never used, on a socket of its own. It disturbs no other
// containerd of the host and needs no service manager.
//
// Its life is longer than the daemon's:
//
//   - The daemon dies (kill -9): containerd goes on, in a session of its own.
//     Start of the next daemon finds it answering at its socket and adopts it.
//   - The daemon stops cleanly while sandboxes live: Leave lets containerd run, as
//     the sandboxes do. With no sandbox left: Stop ends it, and nothing stays behind.
//   - containerd dies: the shims and their commands go on, and it is started again,
//     with a pause that doubles from RestartPauseMin to RestartPauseMax.
package private
