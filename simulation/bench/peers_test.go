package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestAPeerThatIsNotInstalledIsTold(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	var told bytes.Buffer
	rows, err := peersFound(t.Context(), &told, exec.LookPath, rivalry{})
	if err != nil || len(rows) != 0 {
		t.Errorf("%v, %v", rows, err)
	}
	if want := "bench: dkron: not installed: no row\nbench: nomad: not installed: no row\n"; told.String() != want {
		t.Errorf("told %q, want %q", told.String(), want)
	}
}

func TestAPeerWithAFlawHasARowThatSaysSo(t *testing.T) {
	program := programAs(t, "impostor")
	for _, c := range []struct {
		flaw, says string
		stall      time.Duration
	}{
		{flaw: flawLoses, says: "have not run: [", stall: time.Second},
		{flaw: flawEarly, says: "have not run: [", stall: time.Second},
		{flaw: flawTwice, says: "command 11 has run twice"},
		{flaw: flawRefuses, says: "submit command 11: POST /run: 503 Service Unavailable: \"no room\\n\""},
		{flaw: flawDeaf, says: "it did not take commands within 1s"},
		{flaw: flawDies, says: "it ended before it took commands; its log ends: impostor: it ends at once"},
		{flaw: flawQuits, says: "it ended by itself: exit status 6"},
		{flaw: flawLeaves, says: "it left 1 processes behind: sleep (pid "},
		{flaw: flawStubborn, says: "it did not end within 100ms of SIGTERM"},
	} {
		t.Run(c.flaw, func(t *testing.T) {
			t.Parallel()
			r := impostors(program, flawNone, c.flaw)
			if c.stall > 0 {
				r.patience.stall = c.stall
			}
			rows, err := r.measure(t.Context())
			if err != nil || len(rows) != rowsOfAPeer {
				t.Fatalf("%v, %v", rows, err)
			}
			for _, row := range rows {
				if !strings.HasPrefix(row.Failed, "impostor 1.0.0: ") || !strings.Contains(row.Failed, c.says) {
					t.Errorf("%s: failed with %q, want %q", row.What, row.Failed, c.says)
				}
				if len(row.Values) > 0 || row.verdict() != "failed" || strings.Contains(row.Failed, "\n") {
					t.Errorf("%+v is %s", row, row.verdict())
				}
			}
			if failures(rows) == nil {
				t.Error("the benchmark did not fail")
			}
		})
	}
}

func TestAFlawOfOursIsNoRow(t *testing.T) {
	t.Parallel()
	r := impostors(programAs(t, "impostor"), flawTwice, flawNone)
	rows, err := r.measure(t.Context())
	if err == nil || !strings.Contains(err.Error(), "command 11 has run twice") || failures(rows) != nil {
		t.Errorf("%v, %v", rows, err)
	}
}

func TestAPeerWithoutAFlawHasFigures(t *testing.T) {
	t.Parallel()
	r := impostors(programAs(t, "impostor"), flawNone, flawNone)
	r.bar = atLeast(1)
	rows, err := r.measure(t.Context())
	wantFigures(t, rows, err, r.rounds, "impostor 1.0.0")
	if rows[0].Bar != r.bar || rows[1].Bar != nil || rows[2].Bar != nil {
		t.Errorf("bars %v, %v and %v", rows[0].Bar, rows[1].Bar, rows[2].Bar)
	}
}

// impostors are two programs of the tests beside each other.
func impostors(program, ours, theirs string) rivalry {
	return rivalry{ours: impostorPeer(program, ours), theirs: impostorPeer(program, theirs), rounds: 2, commands: 10, patience: steady}
}

// rowsOfAPeer is a rate and its cost for each flow.
var rowsOfAPeer = 2 * len(flows)

func wantFigures(t *testing.T, rows []row, err error, rounds int, name string) {
	t.Helper()
	if err != nil || len(rows) != rowsOfAPeer {
		t.Fatalf("%v, %v", rows, err)
	}
	for i, flow := range flows {
		rate, cost := rows[2*i], rows[2*i+1]
		if rate.Failed != "" || len(rate.Values) != rounds || rate.median() <= 0 || !strings.Contains(rate.Note, "counted by the ledger") {
			t.Errorf("%+v", rate)
		}
		what := fmt.Sprintf("commands per command of %s, %s", name, flow.name)
		if rate.What != what || cost.What != what+": CPU of each" || cost.Failed != "" || !strings.Contains(cost.Note, " ms against ") {
			t.Errorf("rows %+v and %+v, want %q", rate, cost, what)
		}
	}
}

// Our own node beside our own node: both go the way of a peer.
func TestOurNodeIsAPeerLikeAnyOther(t *testing.T) {
	t.Parallel()
	binary := builtNode(t)
	r := rivalry{ours: oursPeer(binary), theirs: oursPeer(binary), rounds: 1, commands: 20, patience: steady}
	rows, err := r.measure(t.Context())
	wantFigures(t, rows, err, r.rounds, "errand")
}
