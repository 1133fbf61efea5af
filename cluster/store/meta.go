package store

import (
	"context"
	"crypto/rand"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// EnsureCluster creates meta/cluster, or returns the one that exists if this node
// agrees with it: the number of shards, the hash, whether it may be alone, and
// rules of writing that this binary follows. A disagreement is ClassInvalid and
// says what to change.
func (s *Store) EnsureCluster(ctx context.Context, keys records.Keys, solo bool) (*recordv1.Cluster, error) {
	if keys.Shards <= 0 {
		return nil, records.Errorf(records.ClassInvalid, "a cluster has at least one shard, not %d", keys.Shards)
	}
	wanted := &recordv1.Cluster{
		Epoch: 1, Shards: keys.Shards, Hash: records.HashName, Solo: solo, MinWriter: records.FirstWriter, Id: rand.Text(),
	}
	var backoff retries
	for {
		result, err := s.Do(ctx, keys.Found(wanted))
		switch {
		case err == nil && result.Succeeded:
			return wanted, nil
		case err == nil:
			return existingCluster(result, keys, solo)
		}
		// Founding again is harmless: it never changes what exists.
		class := records.ClassOf(err)
		again := class == records.ClassOutcomeUnknown || class == records.ClassUnavailable
		if !again || !backoff.wait(ctx) {
			return nil, records.Errorf(class, "found cluster: %w", err)
		}
	}
}

func existingCluster(result records.Result, keys records.Keys, solo bool) (*recordv1.Cluster, error) {
	kv, ok := result.First(0)
	if !ok {
		return nil, records.Errorf(records.ClassInternal, "%s neither exists nor could be created", keys.Cluster())
	}
	cluster := &recordv1.Cluster{}
	if err := records.Decode(kv, cluster); err != nil {
		return nil, err
	}
	switch {
	case cluster.GetMinWriter() > records.Writer:
		return nil, records.Errorf(records.ClassInvalid, "the cluster needs a newer version of Errand: it is written by rules %d, this one knows %d", cluster.GetMinWriter(), records.Writer)
	case cluster.GetShards() != keys.Shards:
		return nil, records.Errorf(records.ClassInvalid, "the cluster was created with %d shards, this node is configured with %d; the number can not be changed", cluster.GetShards(), keys.Shards)
	case cluster.GetHash() != records.HashName:
		return nil, records.Errorf(records.ClassInvalid, "the cluster spreads apps by %q, this node by %q", cluster.GetHash(), records.HashName)
	case solo && !cluster.GetSolo():
		return nil, records.Errorf(records.ClassInvalid, "the cluster is made for several nodes, this node is configured to be alone")
	}
	return cluster, nil
}
