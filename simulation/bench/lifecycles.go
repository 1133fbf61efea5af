package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/cluster/store"
)

// lifecycleSubmitters submit runs, and in turn as many compare and swap.
const lifecycleSubmitters = 64

// lifecycles measures full durable lifecycles without any process or log, and beside them in
// the same run what single compare-and-swaps the same store does over gRPC. A
// transition is a write of a run's record, counted by the store.
func lifecycles(ctx context.Context, s sizes) (rows []row, err error) {
	d, err := startDaemon(ctx, "--drivers", "null", "--sandboxes-max", "4096")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	swaps, err := newSwapper(d)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, swaps.client.Close()) }()

	perSecond := row{What: fmt.Sprintf("lifecycles, null driver, %d submitters", lifecycleSubmitters), Unit: "/s", Bar: atLeast(3000)}
	ratio := row{What: "durable transitions per raw single CAS over gRPC", Unit: "x", Bar: atLeast(1)}
	var cost costs
	var raw []float64
	transitions := 0.0
	for round := range s.rounds + 1 {
		var c costs
		ours, err := c.measured(d, func() (rate, error) { return drive(ctx, lifecycleSubmitters, s.slice, runOf(d, nothing)) })
		if err != nil {
			return nil, err
		}
		theirs, err := drive(ctx, lifecycleSubmitters, s.slice, swaps.swap)
		if err != nil {
			return nil, err
		}
		if round == 0 { // both warm up
			if transitions, err = swaps.transitions(ctx); err != nil {
				return nil, err
			}
			continue
		}
		cost.add(c)
		raw = append(raw, theirs.perSecond())
		perSecond.Values = append(perSecond.Values, ours.perSecond())
		ratio.Values = append(ratio.Values, ours.perSecond()*transitions/theirs.perSecond())
	}
	perSecond.Note = cost.note()
	ratio.Note = fmt.Sprintf("%.2f transitions a lifecycle; %s raw CAS/s, in turn, by as many submitters on the daemon's own store", transitions, figure(median(raw)))
	return []row{perSecond, ratio}, nil
}

func (c *costs) add(other costs) {
	c.busy += other.busy
	c.spent += other.spent
	c.stolen += other.stolen
	c.took += other.took
	c.runs += other.runs
}

// swapper does plain compare-and-swaps on the daemon's store, through its socket.
type swapper struct {
	client    *clientv3.Client
	revisions [lifecycleSubmitters]int64
}

func newSwapper(d *benchDaemon) (*swapper, error) {
	client, err := storeOf(d)
	if err != nil {
		return nil, err
	}
	return &swapper{client: client}, nil
}

// storeOf connects to the daemon's own store.
func storeOf(d *benchDaemon) (*clientv3.Client, error) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints:   []string{"unix://" + filepath.Join(d.dir, "data", "etcd", store.SocketName)},
		DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
	})
	if err != nil {
		return nil, fmt.Errorf("store's socket: %w", err)
	}
	return client, nil
}

// valueBytes is about what a run's record has.
const valueBytes = 256

var value = strings.Repeat("x", valueBytes)

// swap is one of the submitter's own key.
func (s *swapper) swap(ctx context.Context, submitter int) error {
	key := fmt.Sprintf("bench/%d", submitter)
	answer, err := s.client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", s.revisions[submitter])).
		Then(clientv3.OpPut(key, value)).Commit()
	if err != nil {
		return fmt.Errorf("compare and swap: %w", err)
	}
	if !answer.Succeeded {
		return fmt.Errorf("compare and swap of %s: somebody else wrote it", key)
	}
	s.revisions[submitter] = answer.Header.Revision
	return nil
}

// transitions is how often a run's record was written, on average.
func (s *swapper) transitions(ctx context.Context) (float64, error) {
	const sample = 1000
	answer, err := s.client.Get(ctx, records.RootDefault+"runs/", clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(sample))
	if err != nil {
		return 0, fmt.Errorf("count transitions: %w", err)
	}
	var writes int64
	for _, kv := range answer.Kvs {
		writes += kv.Version
	}
	if writes == 0 {
		return 0, errors.New("count transitions: there are no runs")
	}
	return float64(writes) / float64(len(answer.Kvs)), nil
}
