package store

import (
	"testing"
	"time"

	"github.com/errand-run/errand/cluster/records"
)

// lease waits for the answer to a call about a lease.
func lease(t *testing.T, call func(deliver func(records.LeaseResult))) records.LeaseResult {
	t.Helper()
	results := make(chan records.LeaseResult, 1)
	call(func(r records.LeaseResult) { results <- r })
	select {
	case r := <-results:
		return r
	case <-time.After(patience):
		t.Fatal("no answer about a lease")
		return records.LeaseResult{}
	}
}

func grant(t *testing.T, s *Store, ttl time.Duration) records.LeaseResult {
	t.Helper()
	r := lease(t, func(deliver func(records.LeaseResult)) { s.Grant(ttl, deliver) })
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	return r
}

func leasedTxn(key string, lease int64) records.Txn {
	return records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: key, Lease: lease}}}
}

func TestLeasesOfAnEmbeddedStoreAndOfOneElsewhere(t *testing.T) {
	server := startServer(t)
	for name, s := range map[string]*Store{"embedded": openEmbedded(t), "elsewhere": server.connect(t)} {
		t.Run(name, func(t *testing.T) {
			term := do(t, s, putTxn("k", "")).Term
			granted := grant(t, s, 59500*time.Millisecond)
			if granted.Lease == 0 || granted.TTL != time.Minute || granted.Term != term || term == 0 {
				t.Fatalf("granted %+v, transactions are of term %d", granted, term)
			}
			do(t, s, leasedTxn("k", granted.Lease))
			kept := lease(t, func(deliver func(records.LeaseResult)) { s.KeepAlive(granted.Lease, deliver) })
			if kept != granted {
				t.Errorf("kept %+v, want %+v", kept, granted)
			}
			revoked := lease(t, func(deliver func(records.LeaseResult)) { s.Revoke(granted.Lease, deliver) })
			if want := (records.LeaseResult{Lease: granted.Lease, Term: term}); revoked != want {
				t.Errorf("revoked %+v, want %+v", revoked, want)
			}
			if _, ok := do(t, s, records.Read(records.Get("k"))).First(0); ok {
				t.Error("the key did not go with its lease")
			}
		})
	}
}

func TestLeaseThatIsGoneIsNotFound(t *testing.T) {
	server := startServer(t)
	for name, s := range map[string]*Store{"embedded": openEmbedded(t), "elsewhere": server.connect(t)} {
		t.Run(name, func(t *testing.T) {
			for what, call := range map[string]func(int64, func(records.LeaseResult)){"keepalive": s.KeepAlive, "revoke": s.Revoke} {
				r := lease(t, func(deliver func(records.LeaseResult)) { call(77, deliver) })
				if records.ClassOf(r.Err) != records.ClassNotFound {
					t.Errorf("%s: %v (%v)", what, r.Err, records.ClassOf(r.Err))
				}
			}
		})
	}
}

func TestGrantOfNoTimeIsInvalid(t *testing.T) {
	s := openEmbedded(t)
	r := lease(t, func(deliver func(records.LeaseResult)) { s.Grant(0, deliver) })
	if records.ClassOf(r.Err) != records.ClassInvalid {
		t.Errorf("%v", r.Err)
	}
}

func TestLeaseCallsAreBoundedWhenTheServerIsSilent(t *testing.T) {
	server := startServer(t)
	s := server.connect(t)
	granted := grant(t, s, time.Minute)
	server.proxy.set(func(p *proxy) { p.silentUpTo = 1 << 30 })
	classes := map[string]records.Class{
		"grant": records.ClassOutcomeUnknown, "keepalive": records.ClassUnavailable, "revoke": records.ClassOutcomeUnknown,
	}
	type answer struct {
		what   string
		result records.LeaseResult
	}
	answers := make(chan answer, len(classes)+LeasesInFlightMax+1)
	to := func(what string) func(records.LeaseResult) {
		return func(r records.LeaseResult) { answers <- answer{what, r} }
	}
	began := time.Now()
	s.Grant(time.Minute, to("grant"))
	s.KeepAlive(granted.Lease, to("keepalive"))
	s.Revoke(granted.Lease, to("revoke"))
	for range LeasesInFlightMax - len(classes) {
		s.KeepAlive(granted.Lease, to("keepalive"))
	}
	s.KeepAlive(granted.Lease, to("beyond"))
	if first := <-answers; first.what != "beyond" || records.ClassOf(first.result.Err) != records.ClassUnavailable {
		t.Errorf("beyond the limit: %+v", first)
	}
	if took := time.Since(began); took >= LeaseTimeout { // nothing is answered before
		t.Errorf("handing over took %v", took)
	}
	for range LeasesInFlightMax {
		got := <-answers
		if class := records.ClassOf(got.result.Err); class != classes[got.what] {
			t.Errorf("%s: %v (%v)", got.what, got.result.Err, class)
		}
	}
	if took := time.Since(began); took < LeaseTimeout || took > LeaseTimeout+busy {
		t.Errorf("answered after %v", took)
	}
}

func TestLeaseCallThatNeverLeftIsUnavailable(t *testing.T) {
	server := startServer(t)
	s := server.connect(t)
	server.proxy.set(func(p *proxy) { p.refuse = true })
	server.proxy.cut()
	// A call that runs into the cut may have left.
	limit := time.Now().Add(patience)
	for {
		r := lease(t, func(deliver func(records.LeaseResult)) { s.Grant(time.Minute, deliver) })
		class := records.ClassOf(r.Err)
		if class == records.ClassUnavailable {
			break
		}
		if class != records.ClassOutcomeUnknown || time.Now().After(limit) {
			t.Fatalf("%v (%v)", r.Err, class)
		}
	}
}

func TestCloseAnswersLeaseCalls(t *testing.T) {
	server := startServer(t)
	s := server.connect(t)
	server.proxy.set(func(p *proxy) { p.silentUpTo = 1 << 30 })
	results := make(chan records.LeaseResult, 1)
	s.KeepAlive(1, func(r records.LeaseResult) { results <- r })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case r := <-results:
		if records.ClassOf(r.Err) != records.ClassUnavailable {
			t.Errorf("%v", r.Err)
		}
	default:
		t.Error("Close left a call about a lease unanswered")
	}
	for _, call := range []func(func(records.LeaseResult)){
		func(d func(records.LeaseResult)) { s.Grant(time.Minute, d) },
		func(d func(records.LeaseResult)) { s.KeepAlive(1, d) },
		func(d func(records.LeaseResult)) { s.Revoke(1, d) },
	} {
		if r := lease(t, call); records.ClassOf(r.Err) != records.ClassUnavailable {
			t.Errorf("after Close: %v", r.Err)
		}
	}
}

func TestPutUnderALeaseThatIsGoneIsLostOwnership(t *testing.T) {
	s := openEmbedded(t)
	granted := grant(t, s, time.Minute)
	lease(t, func(deliver func(records.LeaseResult)) { s.Revoke(granted.Lease, deliver) })
	results := make(chan records.Result, 1)
	s.Txn(leasedTxn("k", granted.Lease), func(r records.Result) { results <- r })
	if r := <-results; records.ClassOf(r.Err) != records.ClassLostOwnership {
		t.Errorf("%v (%v)", r.Err, records.ClassOf(r.Err))
	}
	if _, ok := do(t, s, records.Read(records.Get("k"))).First(0); ok {
		t.Error("it was carried out all the same")
	}
}
