package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

const (
	// fillTogether is how many finished runs one transaction writes, fillWriters how many
	// transactions are under way.
	fillTogether = 60
	fillWriters  = 8
	// historyRuns, historyPages and historyGets are how much one batch does.
	historyRuns  = 300
	historyPages = 50
	historyGets  = 300
	// historyPairs is at most how many pairs of batches are measured.
	historyPairs = 20
	// getStride is how far apart the runs lie that are read one after the other: a prime,
	// so that it comes to all of them.
	getStride = 104_729
	// historyBar is how much more a store full of history may cost.
	historyBar = 1.1
	// spareTime is how long a filled store may rest before it is measured.
	spareTime = 2 * time.Second
)

// finishedRuns measures whether what a node does costs more, the more runs have
// finished: two daemons are up at once, one with few of them and one with very many,
// and take batches of the same work in turn.
func finishedRuns(ctx context.Context, s sizes) (rows []row, err error) {
	var sides [2]*past
	defer func() {
		for _, side := range sides {
			if side != nil {
				err = errors.Join(err, side.close())
			}
		}
	}()
	var filled rate
	for i, count := range s.finished {
		if sides[i], filled, err = newPast(ctx, count); err != nil {
			return nil, err
		}
	}
	large := sides[1]
	beside := fmt.Sprintf(", %d finished runs in the store against %d", s.finished[1], s.finished[0])
	compacted, err := large.compaction(ctx)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(sides[0].drop(ctx), pause(ctx, spareTime)); err != nil {
		return nil, err
	}
	for _, what := range []struct {
		name, note string
		batch      func(*past, context.Context) (float64, error)
	}{
		{"a lifecycle, null driver" + beside, "CPU of the daemon", (*past).lifecycles},
		{"a page of 50 runs" + beside, "time of the calls", (*past).pages},
		{"a finished run by its id" + beside, "time of the calls", (*past).gets},
	} {
		r, err := besideEachOther(ctx, min(s.pairs, historyPairs), sides, what.batch)
		if err != nil {
			return rows, err
		}
		r.What, r.Note = what.name, fmt.Sprintf("%s; %s", what.note, r.Note)
		rows = append(rows, r)
	}
	resident, err := large.daemon.ResidentBytes()
	if err != nil {
		return rows, err
	}
	if err := large.again(ctx); err != nil {
		return rows, err
	}
	told := func(what, unit string, value float64, note string) {
		rows = append(rows, row{What: what, Unit: unit, Values: []float64{value}, Note: note})
	}
	name := fmt.Sprintf("with %d finished runs: ", s.finished[1])
	told(name+"resident", "MiB", mebibytes(resident), fmt.Sprintf("embedded store included; filled by its socket at %s/s", figure(filled.perSecond())))
	told(name+"daemon start to ready", "ms", milliseconds(large.daemon.Ready), "")
	told(name+"the store's compaction, each five minutes", "s CPU", compacted.Seconds(), "etcd walks all keys for it")
	return rows, nil
}

// besideEachOther has both sides do batches in turn and returns how much the second
// takes for what the first takes, and what those were.
func besideEachOther(ctx context.Context, pairs int, sides [2]*past, batch func(*past, context.Context) (float64, error)) (row, error) {
	r := row{Unit: "x", Bar: atMost(historyBar)}
	var took [2][]float64
	for pair := range pairs + 1 {
		var each [2]float64
		for turn := range 2 {
			// Who comes second finds the caches and the disk as the first has left them.
			side := (turn + pair) % 2
			var err error
			if each[side], err = batch(sides[side], ctx); err != nil {
				return r, err
			}
		}
		if pair == 0 {
			continue // both warm up
		}
		took[0], took[1] = append(took[0], each[0]), append(took[1], each[1])
		r.Values = append(r.Values, each[1]/each[0])
	}
	r.Note = fmt.Sprintf("%d pairs of batches; medians %.3f ms against %.3f ms", pairs, median(took[1]), median(took[0]))
	return r, nil
}

// past is a daemon with finished runs in its store.
type past struct {
	daemon *benchDaemon
	store  *clientv3.Client
	keys   records.Keys
	flags  []string
	// model is a run as the daemon has left it; those that fill the store are like it.
	model *recordv1.Run
	line  []byte
	count int
	// next is which of them is read next.
	next int
}

// newPast starts a daemon, has it carry one run out, and fills its store with others
// that look the same.
func newPast(ctx context.Context, count int) (p *past, filled rate, err error) {
	p = &past{flags: []string{"--drivers", "null", "--sandboxes-max", "4096"}, keys: records.Keys{Root: records.RootDefault, Shards: records.ShardsDefault}, count: count}
	if p.daemon, err = startDaemon(ctx, p.flags...); err != nil {
		return nil, filled, err
	}
	defer func() {
		if err != nil {
			p, err = nil, errors.Join(err, p.close())
		}
	}()
	if p.store, err = storeOf(p.daemon); err != nil {
		return nil, filled, err
	}
	if err := runOf(p.daemon, nothing)(ctx, 0); err != nil {
		return nil, filled, err
	}
	if err := p.findModel(ctx); err != nil {
		return nil, filled, err
	}
	var next atomic.Int64
	filled, err = driveWhile(ctx, fillWriters, counted((count+fillTogether-1)/fillTogether), func(ctx context.Context, _ int) error {
		from := int(next.Add(fillTogether)) - fillTogether
		return p.fill(ctx, from, min(from+fillTogether, count))
	})
	filled.done = count
	return p, filled, err
}

// findModel reads the one run that the store holds.
func (p *past) findModel(ctx context.Context) error {
	found, err := p.store.Get(ctx, p.keys.Runs(), clientv3.WithPrefix())
	if err == nil && len(found.Kvs) != 1 {
		err = fmt.Errorf("there are %d", len(found.Kvs))
	}
	if err != nil {
		return fmt.Errorf("the run that others are made of: %w", err)
	}
	p.model, err = records.DecodeRun(records.KV{Key: string(found.Kvs[0].Key), Value: found.Kvs[0].Value})
	if err != nil {
		return err
	}
	history, err := p.store.Get(ctx, p.keys.History(p.model.GetId(), p.model.GetApp(), records.ClassOther, p.model.GetEndedAt()))
	if err == nil && len(history.Kvs) != 1 {
		err = errors.New("it is not there")
	}
	if err != nil {
		return fmt.Errorf("its line in the history: %w", err)
	}
	p.line = history.Kvs[0].Value
	return nil
}

// idOf names one of the runs that fill the store.
func (p *past) idOf(i int) string { return fmt.Sprintf("r.%s.%026d", p.model.GetApp(), i) }

// fill writes some of them, a millisecond apart.
func (p *past) fill(ctx context.Context, from, until int) error {
	run, ok := proto.Clone(p.model).(*recordv1.Run)
	if !ok {
		return errors.New("a run's copy is none")
	}
	var puts []clientv3.Op
	for i := from; i < until; i++ {
		run.Id, run.EndedAt = p.idOf(i), p.model.GetEndedAt()-int64(i)-1
		puts = append(puts,
			clientv3.OpPut(p.keys.Run(run.GetId()), string(records.Encode(run))),
			clientv3.OpPut(p.keys.History(run.GetId(), run.GetApp(), records.ClassOther, run.GetEndedAt()), string(p.line)))
	}
	if _, err := p.store.Txn(ctx).Then(puts...).Commit(); err != nil {
		return fmt.Errorf("fill the store: %w", err)
	}
	return nil
}

// drop lets the store forget older revisions.
func (p *past) drop(ctx context.Context) error {
	now, err := p.store.Get(ctx, p.keys.Cluster())
	if err == nil {
		_, err = p.store.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical())
	}
	if err != nil {
		return fmt.Errorf("compact the store: %w", err)
	}
	return nil
}

// compaction does what the store does each few minutes and returns what that took.
func (p *past) compaction(ctx context.Context) (time.Duration, error) {
	if err := p.drop(ctx); err != nil { // of the many writes that have filled it
		return 0, err
	}
	if err := runOf(p.daemon, nothing)(ctx, 0); err != nil {
		return 0, err
	}
	before, err := p.daemon.spent()
	if err != nil {
		return 0, err
	}
	if err := p.drop(ctx); err != nil {
		return 0, err
	}
	after, err := p.daemon.spent()
	return after - before, err
}

// lifecycles is the daemon's time of processors for a run, in milliseconds.
func (p *past) lifecycles(ctx context.Context) (float64, error) {
	before, err := p.daemon.spent()
	if err != nil {
		return 0, err
	}
	if _, err := submitAll(ctx, p.daemon, lifecycleSubmitters, historyRuns, nothing); err != nil {
		return 0, err
	}
	after, err := p.daemon.spent()
	return milliseconds(after-before) / historyRuns, err
}

// pages is how long a list of the newest runs takes, in milliseconds.
func (p *past) pages(ctx context.Context) (float64, error) {
	return p.calls(historyPages, func() error {
		page, err := p.daemon.Runs.List(ctx, &errandv1.ListRunsRequest{PageSize: 50})
		if err == nil && len(page.GetRuns()) != 50 {
			err = fmt.Errorf("a page of %d runs", len(page.GetRuns()))
		}
		return err
	})
}

// gets is how long it takes to read a finished run, any of them, in milliseconds.
func (p *past) gets(ctx context.Context) (float64, error) {
	return p.calls(historyGets, func() error {
		p.next = (p.next + getStride) % p.count
		_, err := p.daemon.Runs.Get(ctx, &errandv1.GetRunRequest{Id: p.idOf(p.next)})
		return err
	})
}

func (p *past) calls(count int, call func() error) (float64, error) {
	begin := time.Now()
	for range count {
		if err := call(); err != nil {
			return 0, err
		}
	}
	return milliseconds(time.Since(begin)) / float64(count), nil
}

// again starts the daemon anew on its store.
func (p *past) again(ctx context.Context) error { return p.daemon.again(ctx, p.flags...) }

func (p *past) close() error {
	var err error
	if p.store != nil {
		err = p.store.Close()
	}
	return errors.Join(err, p.daemon.stop())
}
