package store

import (
	"context"
	"fmt"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/errand-run/errand/cluster/records"
)

func TestScanReturnsTheFirstKeysOfItsRange(t *testing.T) {
	here, elsewhere := openEmbedded(t), startServer(t).connect(t)
	counted := startServer(t).connect(t)
	counted.conn.Load().counting.Store(true)
	for name, s := range map[string]*Store{"embedded": here, "elsewhere": elsewhere, "a server without streams of keys": counted} {
		t.Run(name, func(t *testing.T) {
			var txn records.Txn
			for i := range 100 {
				txn.Then = append(txn.Then, records.Op{Kind: records.OpPut, Key: fmt.Sprintf("s/%02d", i), Value: []byte{byte(i)}})
			}
			do(t, s, txn)
			for _, c := range []struct {
				scan  records.Scan
				first int
				count int
			}{
				{records.Scan{From: "s/", End: "s0", Limit: 1}, 0, 1},
				{records.Scan{From: "s/", End: "s0", Limit: 10}, 0, 10},
				{records.Scan{From: "s/", End: "s0", Limit: 77}, 0, 77},
				{records.Scan{From: "s/", End: "s0", Limit: 100}, 0, 100},
				{records.Scan{From: "s/", End: "s0", Limit: 500}, 0, 100},
				{records.Scan{From: "s/40", End: "s/45", Limit: 500}, 40, 5},
				{records.Scan{From: "s/40\x00", End: "s/45", Limit: 3, KeysOnly: true}, 41, 3},
				{records.Scan{From: "s0", End: "s1", Limit: 3}, 0, 0},
			} {
				kvs, err := s.Scan(t.Context(), c.scan)
				if err != nil || len(kvs) != c.count {
					t.Errorf("%+v: %d keys, %v", c.scan, len(kvs), err)
					continue
				}
				for i, kv := range kvs {
					if kv.Key != fmt.Sprintf("s/%02d", c.first+i) || kv.Mod == 0 || c.scan.KeysOnly != (len(kv.Value) == 0) {
						t.Errorf("%+v: key %d is %+v", c.scan, i, kv)
					}
				}
			}
		})
	}
}

func TestScanRefusesWhatHasNoBound(t *testing.T) {
	s := openEmbedded(t)
	for _, scan := range []records.Scan{
		{From: "a", End: "b"}, {From: "a", End: "b", Limit: -1}, {From: "a", End: "b", Limit: ScanMax + 1}, {From: "a", Limit: 1}, {End: "b", Limit: 1},
	} {
		if _, err := s.Scan(t.Context(), scan); records.ClassOf(err) != records.ClassInvalid {
			t.Errorf("%+v: %v", scan, err)
		}
	}
}

func TestScanEndsWithItsContextAndWithTheStore(t *testing.T) {
	s := openEmbedded(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	scan := records.Scan{From: "a", End: "b", Limit: 1}
	if _, err := s.Scan(ended, scan); records.ClassOf(err) != records.ClassDeadline {
		t.Errorf("with a context that has ended: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Scan(t.Context(), scan); records.ClassOf(err) != records.ClassUnavailable {
		t.Errorf("of a closed store: %v", err)
	}
}

// countingServer counts the keys that a server streams.
type countingServer struct {
	rangeStreamer
	keys, answers int
}

func (c *countingServer) RangeStream(request *pb.RangeRequest, out pb.KV_RangeStreamServer) error {
	stream := out.(*rangeStream) //nolint:forcetypeassert // ours
	take := stream.take
	stream.take = func(answer *pb.RangeStreamResponse) error {
		c.answers++
		c.keys += len(answer.GetRangeResponse().GetKvs())
		if answer.GetRangeResponse().GetCount() != 0 && answer.GetRangeResponse().GetMore() {
			c.keys += int(answer.GetRangeResponse().GetCount())
		}
		return take(answer)
	}
	return c.rangeStreamer.RangeStream(request, stream)
}

func TestScanCostsTheSameWhateverLiesBehind(t *testing.T) {
	s := openEmbedded(t)
	counting := &countingServer{rangeStreamer: s.conn.Load().server}
	s.conn.Load().server = counting
	var cost [2]int
	for i, total := range []int{200, 5000} {
		for from := 0; from < total; from += 100 {
			var txn records.Txn
			for j := range 100 {
				txn.Then = append(txn.Then, records.Op{Kind: records.OpPut, Key: fmt.Sprintf("c/%06d", from+j)})
			}
			do(t, s, txn)
		}
		counting.keys = 0
		for _, limit := range []int64{1, 5, 51} {
			if kvs, err := s.Scan(t.Context(), records.Scan{From: "c/", End: "c0", Limit: limit}); err != nil || int64(len(kvs)) != limit {
				t.Fatal(len(kvs), err)
			}
		}
		cost[i] = counting.keys
	}
	// Pieces double from 10 on.
	if want := 10 + 10 + 10 + 20 + 40; cost[0] != want || cost[1] != want {
		t.Errorf("keys read with 200 and 5,000 in the range: %v, want %d", cost, want)
	}
}
