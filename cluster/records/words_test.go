package records_test

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

func TestWordOfAnEnum(t *testing.T) {
	for want, value := range map[string]protoreflect.Enum{
		"SUCCEEDED":  recordv1.Status_STATUS_SUCCEEDED,
		"OOM_KILLED": recordv1.Reason_REASON_OOM_KILLED,
		"CANCEL":     recordv1.StopCause_STOP_CAUSE_CANCEL,
		"":           recordv1.Reason_REASON_UNSPECIFIED,
		"unknown":    recordv1.Reason(1000),
	} {
		if got := records.Word(value); got != want {
			t.Errorf("the word of %v is %q, want %q", value, got, want)
		}
	}
}
