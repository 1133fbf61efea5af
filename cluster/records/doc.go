// Package records owns what lies in the store: the names, the keys, the codecs
// and the transactions of the protocol. It is pure. It knows no etcd client and
// no clock; package store carries its transactions out, the simulation models
// them, and actors and the API build them.
//
// Every key has exactly one writing role, and every write but a create compares
// the revision that was read (guarantee G1). The builders in this package are
// the only place where a transaction is written down, each next to the line of
// the protocol that it carries out.
package records
