// Package recordv1 holds what lies in the store and in a node's journal: the run
// with its attempts, the assignment of a placement to a node, the node's session,
// and the journal's entries. Package records has the keys and transactions.
//
// Records are read by the version before and the one after: field numbers are never
// used again, and fields that a version does not know are kept. Times are
// milliseconds of Unix time unless the name says otherwise.
package recordv1
