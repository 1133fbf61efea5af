// Package host holds actors: it is the one place that knows how protoactor is
// set up.
//
// Errand's actors must behave the same under goroutines and under a seeded
// scheduler, so nothing of the framework that owns a clock, a goroutine or a
// logger of its own is used. A Host makes the actor system quiet, gives every
// actor the same dispatcher and mailbox by one Props factory, and supervises by
// the injected clock. What a host promises beyond protoactor:
//
//   - A panic in an actor is logged with its stack, and the actor restarts with a
//     fresh value after a pause that doubles. One that fails too often within a
//     window is stopped, and that is logged.
//   - A stop is final. protoactor carries out a restart that arrives after a stop
//     and so brings a dead actor back under an address that nobody can reach; the
//     host's mailboxes drop it.
//   - No message content reaches the log: messages carry users' environments.
//   - With StrictSpawn, props that were not made by the factory are refused.
//     Otherwise they would run on goroutines without a word.
package host
