package records_test

import (
	"math"
	"testing"

	"github.com/errand-run/errand/cluster/records"
)

func TestSizeTextIsWholeOrRoundedDown(t *testing.T) {
	for bytes, want := range map[int64]string{
		0: "0 B", 1: "1 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 1<<20 - 1: "1023.9 KiB",
		64 << 20: "64 MiB", 64<<20 - 1: "63.9 MiB", 64<<20 + 1: "64.0 MiB", 3 << 30: "3 GiB", 5 << 40: "5 TiB", math.MaxInt64: "8388607.9 TiB",
	} {
		if got := records.SizeText(bytes); got != want {
			t.Errorf("%d bytes are %q, want %q", bytes, got, want)
		}
	}
}
