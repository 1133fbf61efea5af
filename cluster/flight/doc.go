// Package flight decides which transactions travel to the store together.
//
// Many small transactions cost the store as many rounds through its log. A flight is
// one transaction that holds others, its members, each with its own conditions and its
// own answer. Whether they may share one is not obvious: the store decides the
// conditions of all members on the state before the flight, and refuses the whole
// flight for what one of them does. So members share a flight only if none writes what
// another compares, reads or writes in any of its branches. Then the flight answers
// each of them as if they had been sent one by one, but for the revision, which they
// share.
//
// A Machine is told what is handed over, what is given up before it was sent, and what
// became of each flight; it says which flight leaves next and what each member is
// answered. It has no clock, no goroutine and no I/O, and never waits for a flight to
// fill: a flight leaves as soon as there is room for it, with whoever can come. The
// same Machine runs in package store on etcd and in simulated worlds on a model of it.
//
// Transactions that touch the same keys keep their order: one that conflicts with what
// is under way, or with one that waits before it, waits.
package flight
