package api

import (
	"context"
	"errors"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// codeOf reads the stable code out of an error.
func codeOf(err error) codes.Code {
	var made *connect.Error
	if !errors.As(err, &made) {
		return ""
	}
	for _, detail := range made.Details() {
		if value, err := detail.Value(); err == nil {
			if info, ok := value.(*errandv1.ErrorInfo); ok {
				return codes.Code(info.GetCode())
			}
		}
	}
	return ""
}

func TestStoreErrorsKeepTheirClass(t *testing.T) {
	cases := map[records.Class]codes.Code{
		records.ClassConflict:       codes.StoreConflict,
		records.ClassUnavailable:    codes.StoreUnavailable,
		records.ClassLostOwnership:  codes.StoreUnavailable,
		records.ClassDeadline:       codes.Deadline,
		records.ClassOutcomeUnknown: codes.OutcomeUnknown,
		records.ClassInternal:       codes.Internal,
	}
	for class, want := range cases {
		err := storeError(context.Background(), "do it", records.Errorf(class, "etcd said no"))
		if got := codeOf(err); got != want || !strings.Contains(err.Error(), "do it: etcd said no") {
			t.Errorf("%s: %s (%v), want %s", class, got, err, want)
		}
	}
}

func TestAnEndedContextSaysWhy(t *testing.T) {
	stopped, stop := context.WithCancelCause(context.Background())
	stop(errStopping)
	late, cancel := context.WithTimeout(context.Background(), 0)
	defer cancel()
	<-late.Done()
	left, leave := context.WithCancel(context.Background())
	leave()
	if got := codeOf(contextError(stopped)); got != codes.NodeStopping {
		t.Errorf("stopping: %s", got)
	}
	if got := codeOf(contextError(late)); got != codes.Deadline {
		t.Errorf("late: %s", got)
	}
	if got := connect.CodeOf(contextError(left)); got != connect.CodeCanceled {
		t.Errorf("left: %s", got)
	}
	if err := contextError(context.Background()); err != nil {
		t.Errorf("under way: %v", err)
	}
}
