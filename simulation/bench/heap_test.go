package main

import (
	"math"
	"testing"
)

func TestEngineOfAHeapProfile(t *testing.T) {
	const text = `heap profile: 4: 3072 [9: 9999] @ heap/2048
1: 1024 [1: 1024] @ 0x1
#	0x1	github.com/errand-run/errand/nodes.(*Machine).add+0x1	placement.go:1

1: 1024 [1: 1024] @ 0x2
#	0x2	go.etcd.io/etcd/server/v3/storage/mvcc.(*keyIndex).put+0x1	index.go:1

1: 1024 [1: 1024] @ 0x3
#	0x3	github.com/errand-run/errand/nodes/sandbox/null.(*Driver).Create+0x1	driver.go:1

0: 0 [1: 1024] @ 0x4
#	0x4	main.gone+0x1	gone.go:1


# runtime.MemStats
# HeapAlloc = 5000
# Stack = 1000 / 2000
`
	got, err := engineOf(text)
	if want := 1024 / (1 - math.Exp(-1)); err != nil || math.Abs(got-want) > 1e-6 {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if _, err := engineOf("nothing of the kind"); err == nil {
		t.Error("what is no profile was read")
	}
}
