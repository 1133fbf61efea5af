package records_test

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

func TestStatusOfRunIsThatOfTheWholeRecord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		run := &recordv1.Run{
			Id: "r.web.a", Name: rapid.String().Draw(t, "name"), Labels: map[string]string{"a": "b"},
			Status: recordv1.Status(rapid.Int32Range(0, 9).Draw(t, "status")), Spec: &recordv1.Spec{Command: []string{"true"}},
			EndedAt: rapid.Int64().Draw(t, "ended"), Message: rapid.String().Draw(t, "message"),
		}
		kv := records.KV{Key: "runs/r.web.a", Value: records.Encode(run)}
		got, err := records.StatusOfRun(kv)
		if err != nil || got != run.GetStatus() {
			t.Fatalf("%v, %v, want %v", got, err, run.GetStatus())
		}
		// Of a value that is cut off, both say the same.
		kv.Value = kv.Value[:rapid.IntRange(0, len(kv.Value)).Draw(t, "cut")]
		whole, wholeErr := records.DecodeRun(kv)
		got, err = records.StatusOfRun(kv)
		if err == nil && wholeErr == nil && got != whole.GetStatus() {
			t.Fatalf("%v, want %v", got, whole.GetStatus())
		}
		if err != nil && wholeErr == nil {
			t.Fatalf("%v of what can be read", err)
		}
	})
	field := (&recordv1.Run{}).ProtoReflect().Descriptor().Fields().ByName("status")
	one, err := proto.Marshal(&recordv1.Run{Status: recordv1.Status_STATUS_RUNNING})
	if err != nil || field.Number() != 8 {
		t.Errorf("the status has the number %d, %v", field.Number(), err)
	}
	if got := testing.AllocsPerRun(100, func() { _, _ = records.StatusOfRun(records.KV{Value: one}) }); got != 0 {
		t.Errorf("%v allocations", got)
	}
}
