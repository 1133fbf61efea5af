package store

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

func TestEnsureCluster(t *testing.T) {
	s := openEmbedded(t)
	good := &recordv1.Cluster{Epoch: 3, Shards: 64, Hash: records.HashName, Solo: true, MinWriter: records.Writer}
	cases := []struct {
		name   string
		stored *recordv1.Cluster
		solo   bool
		// says is part of the error, empty for none.
		says string
	}{
		{"of a fresh store", nil, true, ""},
		{"of another fresh store", nil, true, ""},
		{"that exists", good, true, ""},
		{"with other shards", &recordv1.Cluster{Shards: 8, Hash: records.HashName, Solo: true}, true, "8 shards, this node is configured with 64"},
		{"with another hash", &recordv1.Cluster{Shards: 64, Hash: "fnv", Solo: true}, true, `"fnv"`},
		{"of a newer writer", &recordv1.Cluster{Shards: 64, Hash: records.HashName, Solo: true, MinWriter: records.Writer + 1}, true, "newer version"},
		{"of several nodes, alone", &recordv1.Cluster{Shards: 64, Hash: records.HashName}, true, "several nodes"},
		{"of several nodes", &recordv1.Cluster{Shards: 64, Hash: records.HashName}, false, ""},
	}
	seen := map[string]bool{}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			keys := records.Keys{Root: "/" + t.Name() + "/", Shards: 64}
			if c.stored != nil {
				do(t, s, putTxn(keys.Cluster(), string(records.Encode(c.stored))))
			}
			cluster, err := s.EnsureCluster(context.Background(), keys, c.solo)
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) || records.ClassOf(err) != records.ClassInvalid {
					t.Fatalf("%v (%v), want %q", err, records.ClassOf(err), c.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if c.stored == nil && (cluster.GetId() == "" || seen[cluster.GetId()]) {
				t.Errorf("id %q is not its own", cluster.GetId())
			}
			seen[cluster.GetId()] = true
			if c.stored != nil && !proto.Equal(cluster, c.stored) {
				t.Errorf("got %v, stored %v", cluster, c.stored)
			}
			again, err := s.EnsureCluster(context.Background(), keys, c.solo)
			if err != nil || !proto.Equal(again, cluster) || again.GetEpoch() < 0 || again.GetHash() != records.HashName {
				t.Errorf("the second time: %v, %v", again, err)
			}
		})
	}
	if _, err := s.EnsureCluster(context.Background(), records.Keys{Root: "/none/"}, true); records.ClassOf(err) != records.ClassInvalid {
		t.Errorf("without shards: %v", err)
	}
}
