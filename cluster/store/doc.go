// Package store carries the transactions and follows of package records out on
// etcd: on a server inside this process, under the data directory, or on one
// that is reached over gRPC.
//
// Transactions that write travel in flights, which package flight puts together; few
// are under way at a time, and callers never wait. Those that only read go beside
// them, by a bounded number of workers. A write is sent once. Whether it was carried
// out is an answer of its own: when no reply came, the outcome is unknown and stays so
// until the caller reads on (protocol: group commit and unknown outcomes). Errors are
// translated here, once, into records.Class.
//
// Calls about leases go beside the transactions, once each, within a few seconds.
//
// A follow is a watch, then a linearizable range, then what the watch heard beyond
// it. Watches share few gRPC streams: one for the follows of folders, which live
// long, and some for those of single keys, which come and go. With an embedded
// server each has the server's own channel, and a connection in memory carries
// nothing but looks into the past and calls about leases.
//
// All follows share one probe, which every few seconds proves that their watches
// still hear: it reads the store's revision, asks for progress, and drops what has
// not come past that revision in time, unless the stream shows that it is only
// busy. What is dropped, cut or compacted away starts again with another Reset;
// nothing is ever skipped in silence.
package store
