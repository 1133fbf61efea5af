// Package api is what users of Errand reach: RunService, NodeService and
// ImageService on one port, for Connect, gRPC, gRPC-Web and JSON over HTTP, with
// /healthz, /readyz, /metrics and /debug/pprof beside them.
//
// The package holds no state of its own. Create is one transaction on the store
// and a Tell that may be lost. Get, List, Watch and Wait read the store and never
// ask an actor, so they answer the truth whatever view of the cluster this node
// has. Cancel is asked of the run's actor, which alone writes the run. Logs reads
// the files of the node that ran the attempt.
//
// What decides is pure and apart from what carries out: resolve turns a request
// into a record or into a list of violations, publicRun turns a record into what
// users see, and the page tokens of List are values.
//
// Who has a server in the same process calls it without a connection (Direct): what is
// answered once goes to the same handlers, with the same bounds, counts and errors.
//
// Everything is bounded: the size of a request, the number of open streams, the
// time of a call, the work of one List. Errors carry a Connect code, a text for
// people and an ErrorInfo with a stable code for programs (package codes).
package api
