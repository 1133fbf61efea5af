package host

import (
	"slices"

	"github.com/asynkron/protoactor-go/actor"
	cmap "github.com/orcaman/concurrent-map"
)

// registryMaps is how many maps, each under a lock of its own, hold the addresses of
// actors.
const registryMaps = 256

// protoactor's registry begins with 1,024 concurrent maps. Of the 32 shards that each
// has by default only one is left here: making 32,768 maps takes longer than all else
// that a node does at its start, and a simulated world makes a host for each start of
// each of its nodes. The number is the library's for all its maps, and protoactor is
// the only one that has any.
func init() { cmap.SHARD_COUNT = 1 }

// shrinkRegistry leaves protoactor's registry with fewer maps still: what lies in
// them when empty, and more once each has held something, is memory for good.
func shrinkRegistry(registry *actor.ProcessRegistryValue) {
	letters, _ := registry.GetLocal("deadletter")
	events, _ := registry.GetLocal("eventstream")
	registry.LocalPIDs.LocalPIDs = slices.Clone(registry.LocalPIDs.LocalPIDs[:registryMaps])
	registry.LocalPIDs.GetBucket("deadletter").Set("deadletter", letters)
	registry.LocalPIDs.GetBucket("eventstream").Set("eventstream", events)
}
