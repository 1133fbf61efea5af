package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// startAndIdle measures how long a single node takes to be ready and what it
// holds resident when it has nothing to do.
func startAndIdle(ctx context.Context, s sizes) ([]row, error) {
	ready := row{What: "daemon start to ready", Unit: "ms", Bar: atMost(1000)}
	resident := row{What: "resident, idle", Unit: "MiB", Bar: atMost(60), Note: "embedded etcd included"}
	for range s.starts {
		d, err := startDaemon(ctx, "--drivers", "process")
		if err != nil {
			return nil, err
		}
		ready.Values = append(ready.Values, milliseconds(d.Ready))
		err = pause(ctx, s.idle)
		if err == nil {
			var bytes int64
			bytes, err = d.ResidentBytes()
			resident.Values = append(resident.Values, mebibytes(bytes))
		}
		if err := errors.Join(err, d.stop()); err != nil {
			return nil, err
		}
	}
	ready.Note = fmt.Sprintf("%d starts", s.starts)
	return []row{ready, resident}, nil
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }

func mebibytes(n int64) float64 { return float64(n) / (1 << 20) }

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
