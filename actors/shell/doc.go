// Package shell runs an actors.Machine under protoactor: the thin Receive around
// the pure step.
//
// A turn translates one message into one input, steps the machine and carries the
// effects out in their order through the ports. Every result comes back to the
// actor as a message, and so as a later input. What was asked for by an earlier
// incarnation (before a restart by the supervisor, or before the actor stopped)
// is dropped when it comes, and so is the firing of a timer that was set again in
// the meantime: the machine never has to ask whether a result is still its own.
//
// A panic in Step goes to the supervisor, which restarts the actor: a fresh
// machine, whose first input is Activated.
package shell
