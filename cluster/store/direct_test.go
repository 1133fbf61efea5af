package store

import (
	"context"
	"fmt"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/errand-run/errand/cluster/records"
)

// seeing notes what goes to the embedded server directly.
type seeing struct {
	transactor
	mu       sync.Mutex
	requests []*pb.TxnRequest
}

func (s *seeing) Txn(ctx context.Context, request *pb.TxnRequest) (*pb.TxnResponse, error) {
	s.mu.Lock()
	s.requests = append(s.requests, request)
	s.mu.Unlock()
	return s.transactor.Txn(ctx, request)
}

// placing is what a run's actor commits: it has a condition of its own and one that
// others have too.
func placing(run int, own records.Relation) records.Txn {
	key := fmt.Sprintf("runs/%d", run)
	return records.Txn{
		If: []records.Compare{
			{Key: key, Target: records.TargetCreate, Relation: own},
			{Key: "drains/n1", Target: records.TargetCreate, Relation: records.Equal},
		},
		Then: []records.Op{{Kind: records.OpPut, Key: key, Value: []byte("placed")}, {Kind: records.OpDelete, Key: "live/" + key}},
		Else: []records.Op{records.Get("drains/n1")},
	}
}

func TestAFlightIsOneFlatTransactionUnlessAConditionDoesNotHold(t *testing.T) {
	const members = 20
	for _, c := range []struct {
		name    string
		refused int
	}{{"all hold", -1}, {"the first does not", 0}, {"one in the middle does not", 7}} {
		t.Run(c.name, func(t *testing.T) {
			s := openEmbedded(t)
			direct := s.conn.Load().direct
			seen := &seeing{transactor: direct.server}
			direct.server = seen
			txns := make([]records.Txn, members)
			for i := range txns {
				relation := records.Equal
				if i == c.refused {
					relation = records.NotEqual
				}
				txns[i] = placing(i, relation)
			}
			// The machine has all of them before any leaves.
			for i, result := range gather(s, txns) {
				want := 2
				if i == c.refused {
					want = 1
				}
				if result.Err != nil || result.Succeeded != (i != c.refused) || len(result.Responses) != want || result.Revision == 0 || result.Term == 0 {
					t.Errorf("transaction %d: %+v", i, result)
				}
			}
			flats := 0
			for _, request := range seen.requests {
				if len(request.GetSuccess()) != 2*members {
					continue
				}
				flats++
				if got := len(request.GetCompare()); got != members+1 || len(request.GetFailure()) != 0 {
					t.Errorf("the flat transaction has %d conditions and %d alternatives, want %d and none", got, len(request.GetFailure()), members+1)
				}
			}
			if flats != 1 {
				t.Errorf("%d flat transactions of all members in %d requests, want one", flats, len(seen.requests))
			}
		})
	}
}

func TestOnlyPlainTransactionsGoDirectly(t *testing.T) {
	put := func(key string) records.Op { return records.Op{Kind: records.OpPut, Key: key} }
	many := make([]records.Op, 0, 200)
	for i := range cap(many) {
		many = append(many, put(fmt.Sprint(i)))
	}
	for _, c := range []struct {
		name string
		txn  records.Txn
		want bool
	}{
		{"a change of a run", placing(1, records.Equal), true},
		{"without a key", records.Txn{Then: []records.Op{put("")}}, false},
		{"that compares no key", records.Txn{If: []records.Compare{{Target: records.TargetMod, Relation: records.Equal}}, Then: []records.Op{put("a")}}, false},
		{"that puts a key twice", records.Txn{Then: []records.Op{put("a"), put("b"), put("a")}}, false},
		{"that deletes what it puts", records.Txn{Else: []records.Op{{Kind: records.OpDelete, Key: "a"}, put("a")}}, false},
		{"under a lease", records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: "a", Lease: 7}}}, false},
		{"of a range", records.Txn{Then: []records.Op{{Kind: records.OpDelete, Key: "a/", Prefix: true}}}, false},
		{"that reads up to a key", records.Txn{Then: []records.Op{{Kind: records.OpGet, Key: "a", End: "b"}, put("c")}}, false},
		{"with more than a server takes", records.Txn{Then: many}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := plain(&c.txn); got != c.want {
				t.Errorf("plain is %t, want %t", got, c.want)
			}
		})
	}
}
