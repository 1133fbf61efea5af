// Package etcd is a model of an etcd v3.7 cluster for simulated worlds: what it
// promises, and all that it does not.
//
// The inner layer is a State: a pure state machine of revisions, transactions with
// nested transactions, leases that hold keys, and compaction. It has no time, no
// members and no faults, and answers a sequence of operations as the real thing
// does; random sequences are run through both.
//
// The outer layer is a Cluster of one, three or five members on a virtual timeline.
// It knows who leads, which member a client talks to, how long everything takes,
// when a lease ends, and what goes wrong: members that are cut off, paused or
// stopped, answers that are lost, writes that time out and are committed later, a
// deposed leader that acknowledges keepalives, watches that fall silent. A Client is
// what one incarnation of a daemon holds; it behaves as the production adapter in
// cluster/store does on top of etcd's client, with the same bounds.
//
// One true state stands behind all members. A member that does not follow it has
// only a position in the past, so a fault costs nothing while there is none. All of
// it belongs to one goroutine; it reads no clock but the timeline and draws from the
// stream that it was given. Values of keys are shared between the state and whoever
// reads them, and must not be changed by anybody.
package etcd
