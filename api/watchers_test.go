package api_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/store"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// etcdSays reads a metric of the embedded server.
func etcdSays(t *testing.T, name string) int {
	t.Helper()
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			metric := family.GetMetric()[0]
			return int(metric.GetGauge().GetValue() + metric.GetCounter().GetValue())
		}
	}
	t.Fatalf("etcd has no metric %s", name)
	return 0
}

const (
	etcdWatchers = "etcd_debugging_mvcc_watcher_total"
	etcdRanges   = "etcd_mvcc_range_total"
)

func TestAThousandWatchersCostOneWatchAndNoPolling(t *testing.T) {
	const runs, watchers = 10, 1000
	r := newRig(t)
	for i := range runs {
		r.put(fmt.Sprintf("r.web.%d", i), nil)
	}
	before := etcdSays(t, etcdWatchers)
	var readers []*reader
	for range watchers / 2 {
		readers = append(readers, r.changes(&errandv1.RunChangesRequest{App: "web"}))
	}
	seen := make(chan string, watchers/2)
	var watching sync.WaitGroup
	defer watching.Wait()
	var joined sync.WaitGroup
	for i := range watchers / 2 {
		joined.Add(1)
		watching.Go(func() {
			id := fmt.Sprintf("r.web.%d", i%runs)
			stream, err := r.runs.Watch(r.ctx, &errandv1.WatchRunRequest{Id: id})
			if err != nil || !stream.Receive() {
				joined.Done()
				seen <- fmt.Sprintf("%s: %v", id, err)
				return
			}
			joined.Done()
			var last errandv1.Status
			for stream.Receive() {
				last = stream.Msg().GetRun().GetStatus()
			}
			_ = stream.Close()
			seen <- strings.TrimPrefix(last.String(), "STATUS_")
		})
	}
	joined.Wait()
	if got := etcdSays(t, etcdWatchers) - before; got != 1 {
		t.Errorf("%d watches at etcd for %d watchers", got, watchers)
	}

	// In a quiet time the store proves, at each interval, that its one watch is alive.
	quiet := store.ProbeInterval + time.Second
	ours, theirs := r.store.count.Load(), etcdSays(t, etcdRanges)
	<-time.After(quiet)
	if got := r.store.count.Load() - ours; got != 0 {
		t.Errorf("%d reads in %s without a change", got, quiet)
	}
	if got := etcdSays(t, etcdRanges) - theirs; got > 2 {
		t.Errorf("%d reads at etcd in %s without a change", got, quiet)
	}

	ours = r.store.count.Load()
	for i := range runs {
		r.end(fmt.Sprintf("r.web.%d", i), recordv1.Status_STATUS_SUCCEEDED, 7000)
	}
	for _, reader := range readers {
		for i := range runs {
			reader.want(fmt.Sprintf("r.web.%d SUCCEEDED", i))
		}
	}
	for range watchers / 2 {
		if got := <-seen; got != "SUCCEEDED" {
			t.Errorf("a watch saw %s", got)
		}
	}
	if got := r.store.count.Load() - ours; got != 0 {
		t.Errorf("%d reads to tell %d watchers of %d changes", got, watchers, runs)
	}
}

func TestASlowReaderHoldsNobodyUpAndIsToldToListAgain(t *testing.T) {
	r := newRig(t)
	slow := r.changes(&errandv1.RunChangesRequest{})
	fast := r.changes(&errandv1.RunChangesRequest{})
	// More than the window holds, and than the way to the slow reader takes in.
	const changes = 100
	r.put("r.web.large", func(run *recordv1.Run) { run.Spec.Env = []string{"A=" + strings.Repeat("x", 400_000)} })
	fast.want("r.web.large PENDING")
	for range changes {
		r.update("r.web.large", running)
		fast.want("r.web.large RUNNING")
	}
	told := 0
	for slow.stream.Receive() {
		told += len(slow.stream.Msg().GetChanges())
		if position := slow.stream.Msg().GetPosition(); position != "" {
			slow.position = position
		}
	}
	wantCode(t, slow.stream.Err(), codes.ListAgain)
	if told == 0 || told > changes/2 {
		t.Errorf("the slow reader was told %d of %d changes", told, changes)
	}
	wantCode(t, r.refused(slow.position), codes.ListAgain)
	wantCode(t, r.another(nil).refused(slow.position), codes.ListAgain)
}
