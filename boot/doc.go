// Package boot makes a node of Errand a part of any Go program that is assembled with
// fx. The daemon, cmd/node, is nothing but this package and a command line.
//
//	app := fx.New(
//		boot.Node(boot.Config{DataDir: "/var/lib/acme/errand"}),
//		fx.Decorate(func(parts boot.Parts, log *zap.Logger) boot.Parts {
//			parts.Log = log.Named("errand")
//			return parts
//		}),
//		fx.Invoke(func(node *boot.Instance, lifecycle fx.Lifecycle) {
//			// node.Client() submits runs, once the node has started.
//		}),
//		fx.StartTimeout(boot.StartTimeout), fx.StopTimeout(boot.StopTimeout),
//	)
//
// Node gives the application two things: an *Instance, the way to the node, and Parts,
// what the application may put in place of the node's own (fx.Decorate, or fx.Replace
// where nothing of the graph is needed). Everything else is private to the node: an
// application's own logger, registry or listener is neither taken nor in the way.
//
// The package handles no signals, ends no process, writes to neither stdout nor stderr,
// reads no flags and keeps no state of its own outside the application: several
// applications in one process have a node each, with a data directory each, and one
// that has stopped may start again. Two libraries beneath reach further: etcd has its
// metrics in prometheus.DefaultRegisterer, and the maps of concurrent-map, which
// protoactor-go uses, have one shard in the whole process.
//
// # Order
//
// A node comes up in stages and goes down in the reverse order:
//
//	cluster access   the API's address and the store
//	node storage     the journal and what it says of before
//	sandbox host     drivers; survivors of the last process are adopted
//	sandbox agent    the session; assignments begin to be carried out
//	node presence    only now is room offered and the API served
//
// To fx they are one hook. It comes before the hooks of whatever takes the *Instance,
// and after those of what a decorator of Parts takes. Each stage has a name, which its
// errors carry, and a time limit of its own. A start that fails, or whose context ends,
// takes down what had come up before it returns. A stop whose context ends goes on to
// the last stage, but waits for nothing any more. fx itself runs no hook once a context
// is over, be it to roll back a start; Instance.Close takes the node down then.
//
// Stopping a node leaves its sandboxes alone: they go on, also when the process is
// killed, and the next node with the data directory adopts them.
package boot
