package store

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/errand-run/errand/cluster/records"
)

const quotaOfTests = 16 << 20

// crowd fills a store's file up to its quota: with values that stay, or that are
// overwritten. It returns how many it wrote for sure.
func crowd(t *testing.T, s *Store, stays bool) (written int) {
	t.Helper()
	value := strings.Repeat("v", 64<<10)
	for ; written < 1000; written++ {
		key := "crowd/0"
		if stays {
			key = fmt.Sprintf("crowd/%d", written)
		}
		_, err := s.Do(context.Background(), changing(records.ChangeEnd, key, value))
		if class := records.ClassOf(err); err != nil && (class == records.ClassUnavailable || class == records.ClassOutcomeUnknown) {
			return written
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the store takes whatever comes")
	return 0
}

// said tells whether a line of the log has a text.
func said(logs *observer.ObservedLogs, text string) bool {
	return logs.Filter(func(line observer.LoggedEntry) bool { return strings.Contains(line.Message, text) }).Len() > 0
}

// A server that has once come to its quota takes no write until somebody takes its word
// back, and its file gets no smaller by itself.
func TestStoreAtItsQuotaStartsAgainWithoutWhatIsOutOfDate(t *testing.T) {
	dir := dataDir(t)
	s := openAt(t, Config{DataDir: dir, QuotaBytes: quotaOfTests})
	do(t, s, putTxn("kept", "1"))
	crowd(t, s, false)
	before := s.space.held.server.Server.Backend().Size()
	if err := eventually(t, s, records.ClassUnavailable); !strings.Contains(err.Error(), "--store-max-bytes") {
		t.Errorf("a run was refused with %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// What is left of a copy that was not whole when the process was killed.
	torn := filepath.Join(member(dir), "snap", "db.tmp.1234")
	if err := os.WriteFile(torn, []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.InfoLevel)
	s = openAt(t, Config{DataDir: dir, QuotaBytes: quotaOfTests, Log: zap.New(core)})
	for _, line := range []string{"is nearly as large as it may be: what is out of date", "what was out of date in the store is removed", "took no writes; it has room and takes them again"} {
		if !said(logs, line) {
			t.Errorf("the log does not say %q", line)
		}
	}
	if after := s.space.held.server.Server.Backend().Size(); after > before/4 {
		t.Errorf("the file had %d bytes, and has %d", before, after)
	}
	if _, err := os.Stat(torn); !os.IsNotExist(err) {
		t.Errorf("the torn copy is there: %v", err)
	}
	if err := s.Trouble(); err != nil {
		t.Errorf("the trouble is %v", err)
	}
	do(t, s, changing(records.ChangeCreate, "made", "1"))
	for key, size := range map[string]int{"kept": 1, "crowd/0": 64 << 10} {
		if kv, ok := do(t, s, records.Read(records.Get(key))).First(0); !ok || len(kv.Value) != size {
			t.Errorf("%s has %d bytes (%v)", key, len(kv.Value), ok)
		}
	}
}

func TestStoreThatIsFullStartsWithALargerQuota(t *testing.T) {
	dir := dataDir(t)
	s := openAt(t, Config{DataDir: dir, QuotaBytes: quotaOfTests})
	written := crowd(t, s, true)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	all := records.Read(records.Op{Kind: records.OpGet, Key: "crowd/", Prefix: true, KeysOnly: true})
	for _, quota := range []int64{quotaOfTests, quotaOfTests / 2, 2 * quotaOfTests, quotaOfTests, 4 * quotaOfTests} {
		s, err := Open(context.Background(), Config{DataDir: dir, QuotaBytes: quota})
		if quota <= quotaOfTests {
			if records.ClassOf(err) != records.ClassUnavailable || !strings.Contains(err.Error(), "no space") || !strings.Contains(err.Error(), "--store-max-bytes") {
				t.Fatalf("with a quota of %d: %v", quota, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("with a quota of %d: %v", quota, err)
		}
		do(t, s, changing(records.ChangeCreate, "made", "1"))
		if got := len(do(t, s, all).Responses[0].KVs); got != written && got != written+1 {
			t.Errorf("%d of %d writes are there", got, written)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A server that finds out that a write is beyond its quota when it carries the write out
// refuses it, and has carried it out.
func TestFirstWriteBeyondTheQuotaMayBeThere(t *testing.T) {
	s := openAt(t, Config{DataDir: dataDir(t), QuotaBytes: quotaOfTests})
	server := s.embedded.server.Server
	s.conn.Load().direct.quota = storage.NewBackendQuota(server.Logger(), -1, server.Backend(), "none") // as when others were before
	value := strings.Repeat("v", 64<<10)
	for i := range 1000 {
		key := fmt.Sprintf("crowd/%d", i)
		_, err := s.Do(context.Background(), changing(records.ChangeEnd, key, value))
		if err == nil {
			continue
		}
		if _, there := do(t, s, records.Read(records.Get(key))).First(0); !there || records.ClassOf(err) != records.ClassOutcomeUnknown {
			t.Errorf("the write is there: %v; it was answered with %v", there, err)
		}
		return
	}
	t.Fatal("the store takes whatever comes")
}

// The alarm of a store elsewhere is known before anybody writes.
func TestTroubleOfAStoreElsewhereThatIsAtItsQuota(t *testing.T) {
	server := startServers(t, 1, nil)[0]
	s, client := server.connect(), server.client()
	status := must[*clientv3.StatusResponse](t)(client.Status(t.Context(), server.plan.Client))
	alarm := func(action pb.AlarmRequest_AlarmAction) {
		t.Helper()
		request := &pb.AlarmRequest{Action: action, MemberID: status.Header.GetMemberId(), Alarm: pb.AlarmType_NOSPACE}
		must[*pb.AlarmResponse](t)(pb.NewMaintenanceClient(client.ActiveConnection()).Alarm(t.Context(), request))
	}
	cancel := s.Follow("k", func(records.Batch) {})
	defer cancel()
	look := func() error {
		t.Helper()
		if err := s.probeOnce(); err != nil {
			t.Fatal(err)
		}
		return s.Trouble()
	}
	if err := look(); err != nil {
		t.Errorf("at first: %v", err)
	}
	alarm(pb.AlarmRequest_ACTIVATE)
	if err := look(); records.ClassOf(err) != records.ClassUnavailable || !strings.Contains(err.Error(), "alarm disarm") {
		t.Errorf("with the alarm: %v", err)
	}
	if _, err := s.Do(t.Context(), putTxn("k", "1")); records.ClassOf(err) != records.ClassUnavailable || !strings.Contains(err.Error(), "alarm disarm") {
		t.Errorf("a write: %v", err)
	}
	alarm(pb.AlarmRequest_DEACTIVATE)
	if err := look(); err != nil {
		t.Errorf("without: %v", err)
	}
	do(t, s, putTxn("k", "2"))
}
