// Package run is the run actor: the lifecycle of one Run and the only writer of
// its record (guarantee G1).
//
// It is built in two layers. The core (transition.go, outcome.go, wake.go) is a
// pure function: from the record, one request and the time it decides the new
// record, the transaction that carries it, and the effects that follow once the
// commit is known. Which request means what in which phase is the table in
// transition.go; nothing outside that table changes a run.
//
// The machine (machine.go, commit.go, placing.go) is what makes decisions
// durable: it loads the record, keeps requests in order, has at most one
// transaction in flight, compares the revision that was read with every write,
// and decides again whenever a compare failed or an outcome is unknown. Effects
// that touch the world follow a known commit only. Everything in it can be lost
// at any moment: a new activation loads the record and goes on. Two things it knows
// that no record holds: since when the session of its node is over (loss.go), and when
// the client of an attended run was last heard (attendance.go). A new activation begins
// with either anew.
//
// The life of a run:
//
//	create ─ PENDING, waiting ── Place ──▶ PENDING, placed ── Started ──▶ RUNNING
//	             ▲     │                       │    │                        │
//	             └─ Void ──────────────────────┘    └──── Exited ────┬───────┘
//	                   └─ cancel, start deadline ──▶ terminal ◀──────┘
package run
