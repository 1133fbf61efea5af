package api

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

var update = flag.Bool("update", false, "write the golden files")

func TestEnumsOfRecordsAndAPIHaveTheSameNumbersAndNames(t *testing.T) {
	pairs := []struct{ stored, shown protoreflect.EnumDescriptor }{
		{recordv1.Status(0).Descriptor(), errandv1.Status(0).Descriptor()},
		{recordv1.Reason(0).Descriptor(), errandv1.Reason(0).Descriptor()},
		{recordv1.Trigger(0).Descriptor(), errandv1.Trigger(0).Descriptor()},
		{recordv1.PullPolicy(0).Descriptor(), errandv1.PullPolicy(0).Descriptor()},
	}
	for _, pair := range pairs {
		if a, b := pair.stored.Values().Len(), pair.shown.Values().Len(); a != b {
			t.Errorf("%s: %d stored values, %d shown", pair.stored.Name(), a, b)
		}
		for i := range pair.stored.Values().Len() {
			stored := pair.stored.Values().Get(i)
			shown := pair.shown.Values().ByNumber(stored.Number())
			if shown == nil || shown.Name() != stored.Name() {
				t.Errorf("%s: is not shown as %s", stored.FullName(), stored.Name())
			}
		}
	}
}

func fullRecord() *recordv1.Run {
	return &recordv1.Run{
		Id: "k.web.abcdefghijklmnopqrstuvwxyz", App: "web", Task: "report", Name: "nightly",
		Labels: map[string]string{"team": "a"}, Trigger: recordv1.Trigger_TRIGGER_MANUAL,
		Spec: &recordv1.Spec{
			Driver: "containerd", Image: "busybox", Command: []string{"sh", "-c", "exit 17"}, Env: []string{"A=1", "B=x=y"},
			WorkingDir: "/tmp", User: "1:1", CpuMillis: 500, MemoryBytes: 64 << 20, PidsLimit: 100, ReadOnlyRoot: true,
			TimeoutMs: 1500, StartDeadlineMs: 300000, StopGraceMs: 10000,
		},
		Status: recordv1.Status_STATUS_FAILED, Reason: recordv1.Reason_REASON_EXIT_CODE, Message: "exited with 17",
		CreatedAt: 1700000000123, QueuedAt: 1700000000123, StartedAt: 1700000001000, EndedAt: 1700000002500,
		ExitCode: proto.Int32(17), Attempt: 2,
		Attempts: []*recordv1.Attempt{
			{
				Number: 1, Node: "n1", Placement: 1, StartedAt: 1700000000500, EndedAt: 1700000000700, Signal: 9, ExitCode: proto.Int32(137),
				OomKilled: true, Reason: recordv1.Reason_REASON_OOM_KILLED, Message: "out of memory", LogComplete: true, Status: recordv1.Status_STATUS_FAILED,
				Signals: []*recordv1.SentSignal{
					{Signal: 15, At: 1700000000600, Delivered: proto.Bool(false), Cause: recordv1.StopCause_STOP_CAUSE_TIMEOUT},
					{Signal: 9, At: 1700000000650, Delivered: proto.Bool(true), Cause: recordv1.StopCause_STOP_CAUSE_TIMEOUT},
					{Signal: 9, At: 1700000000660, Cause: recordv1.StopCause_STOP_CAUSE_UNSPECIFIED},
				},
			},
			{Number: 2, Node: "n1", Placement: 1, StartedAt: 1700000001000, EndedAt: 1700000002500, ExitCode: proto.Int32(17), Reason: recordv1.Reason_REASON_EXIT_CODE, Status: recordv1.Status_STATUS_FAILED},
		},
		RequestHash: []byte("secret of ours"), Writer: "n1/1/2", HoldMessage: "not shown any more",
		Wish: &recordv1.Wish{Reason: recordv1.Reason_REASON_CANCELED},
	}
}

func TestRunInJSONIsTheGoldenFile(t *testing.T) {
	pending := &recordv1.Run{
		Id: "r.default.x", App: "default", Status: recordv1.Status_STATUS_PENDING, CreatedAt: 1700000000000, QueuedAt: 1700000000000, Attempt: 1,
		Wish: &recordv1.Wish{Reason: recordv1.Reason_REASON_CANCELED}, HoldMessage: "no room: 8 of 8 sandboxes",
	}
	cases := map[string]*recordv1.Run{"full": fullRecord(), "pending": pending}
	for name, record := range cases {
		t.Run(name, func(t *testing.T) {
			raw, err := protojson.Marshal(publicRun(record, records.KV{Mod: 42, Version: 3}))
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			// protojson varies its white space on purpose.
			var compact bytes.Buffer
			if err := json.Compact(&compact, raw); err != nil {
				t.Fatal(err)
			}
			if err := json.Indent(&got, compact.Bytes(), "", "  "); err != nil {
				t.Fatal(err)
			}
			got.WriteByte('\n')
			path := "testdata/run-" + name + ".json"
			if *update {
				if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Bytes(), want) {
				t.Errorf("got %s\nwant %s", got.Bytes(), want)
			}
		})
	}
}

// A cause that is added to the records needs a public word.
func TestEveryCauseOfAStopHasItsOwnReason(t *testing.T) {
	seen := map[errandv1.Reason]recordv1.StopCause{}
	for number := range recordv1.StopCause_name {
		cause := recordv1.StopCause(number)
		reason := reasonOfStop(cause)
		if other, twice := seen[reason]; twice {
			t.Errorf("%s and %s are both shown as %s", cause, other, reason)
		}
		seen[reason] = cause
	}
	if seen[errandv1.Reason_REASON_UNSPECIFIED] != recordv1.StopCause_STOP_CAUSE_UNSPECIFIED {
		t.Error("no cause at all has a reason")
	}
}

func TestAnExitCodeThatWasNotObservedIsAbsent(t *testing.T) {
	record := fullRecord()
	record.ExitCode = nil
	if got := publicRun(record, records.KV{}); got.ExitCode != nil {
		t.Errorf("exit code %d", got.GetExitCode())
	}
	record.ExitCode = proto.Int32(0)
	if got := publicRun(record, records.KV{}); got.ExitCode == nil || got.GetExitCode() != 0 {
		t.Error("an observed 0 is not shown")
	}
}

func TestStatusWordsAreThoseOfTheContract(t *testing.T) {
	var words []string
	for number := range int32(len(errandv1.Status_name) - 1) {
		words = append(words, statusWord(errandv1.Status(number+1)))
	}
	if got := strings.Join(words, " "); got != "PENDING RUNNING SUCCEEDED FAILED TIMED_OUT CANCELED SKIPPED" {
		t.Error(got)
	}
}
