package records

import (
	"strconv"
	"strings"
)

// Keys makes the keys of one cluster. Prefixes end with a slash, so that n1 is
// not taken for a prefix of n10.
type Keys struct {
	// Root is the prefix of everything, "/errand/" by default.
	Root string
	// Shards is the cluster's fixed number of shards.
	Shards int32
}

// Defaults of a cluster.
const (
	RootDefault   = "/errand/"
	ShardsDefault = 64
	// HashName is the only hash from apps to shards.
	HashName = "xxhash64"
)

// Cluster is the key of what every node must agree on.
func (k Keys) Cluster() string { return k.Root + "meta/cluster" }

func (k Keys) inShard(kind, app string) string {
	return k.shard(kind, ShardOf(app, k.Shards))
}

// ofRun is the key of a run among those of a kind. A run's transactions are made of many
// of them: each is one text, joined once.
func (k Keys) ofRun(kind, run string) string {
	return k.Root + kind + "/" + strconv.Itoa(int(ShardOf(appOf(run), k.Shards))) + "/" + run
}

// Run is the key of a run's record. The id must be one (AppOfRun).
func (k Keys) Run(run string) string { return k.ofRun("runs", run) }

// Live is the key that exists while the run is not terminal.
func (k Keys) Live(run string) string { return k.ofRun("live", run) }

// Gone is the tombstone of a deleted run.
func (k Keys) Gone(run string) string { return k.ofRun("gone", run) }

// RunsOfApp is the prefix of the ids of one kind ("r", "k" or "t") in an app.
func (k Keys) RunsOfApp(kind, app string) string {
	return k.inShard("runs", app) + kind + "." + app + "."
}

// Runs is the prefix of the records of all runs.
func (k Keys) Runs() string { return k.Root + "runs/" }

// RunsInShard is the prefix of all records of a shard.
func (k Keys) RunsInShard(shard int32) string { return k.shard("runs", shard) }

// LiveInShard is the prefix that the shard's deadline actor follows.
func (k Keys) LiveInShard(shard int32) string { return k.shard("live", shard) }

// HistoryClass sorts finished runs by how long they are kept.
type HistoryClass string

// The classes of history.
const (
	ClassConsole  HistoryClass = "console"
	ClassSchedule HistoryClass = "schedule"
	ClassOther    HistoryClass = "other"
)

// HistoryInShard is the prefix of a shard's finished runs.
func (k Keys) HistoryInShard(shard int32) string { return k.shard("history", shard) }

// HistoryOfApp is the prefix of an app's finished runs of a class, the last to end
// first, and behind them those of the older form (HistoryForward).
func (k Keys) HistoryOfApp(app string, class HistoryClass) string {
	return k.inShard("history", app) + app + "/" + string(class) + "/"
}

func (k Keys) shard(kind string, shard int32) string {
	return k.Root + kind + "/" + strconv.Itoa(int(shard)) + "/"
}

// Queue is the key of a run that waits for a slot of a gate.
func (k Keys) Queue(gate, run string) string { return k.Root + "queue/" + gate + "/" + run }

// Slot is the key that a run holds while it counts against a gate.
func (k Keys) Slot(gate, run string) string { return k.Root + "slots/" + gate + "/" + run }

// Overlap is the key of a scheduled run that has not ended.
func (k Keys) Overlap(app, task, run string) string {
	return k.Root + "overlap/" + app + "/" + task + "/" + run
}

// Assignment is the key of a run's placement on a node.
func (k Keys) Assignment(node, run string) string { return k.AssignmentsOf(node) + run }

// AssignmentsOf is the prefix that a node follows.
func (k Keys) AssignmentsOf(node string) string { return k.Root + "assignments/" + node + "/" }

// Node is the key whose create revision is the node's session.
func (k Keys) Node(node string) string { return k.Nodes() + node }

// Nodes is the prefix of all sessions.
func (k Keys) Nodes() string { return k.Root + "nodes/" }

// NodeInfo is the key of what outlives a node's sessions.
func (k Keys) NodeInfo(node string) string { return k.Root + "nodeinfo/" + node }

// Drain is the key that keeps a node from taking anything more.
func (k Keys) Drain(node string) string { return k.Root + "drains/" + node }

// LastPart returns what follows the last slash: the run of a live or assignment
// key, the node of a session key.
func LastPart(key string) string { return key[strings.LastIndexByte(key, '/')+1:] }

// appOf trusts that ids were checked where they came in; for anything else it
// returns the whole text, which no real run shares a shard prefix with.
func appOf(run string) string {
	app, err := AppOfRun(run)
	if err != nil {
		return run
	}
	return app
}
