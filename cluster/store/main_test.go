package store

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if plan := os.Getenv(serverVariable); plan != "" {
		serve(plan)
		return
	}
	goleak.VerifyTestMain(m)
}
