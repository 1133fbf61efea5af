package daemon_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// LOG-01: nothing of a short command's output is lost, and the log is complete in
// the moment in which the status is terminal.
func TestLogIsCompleteWhenTheStatusIsTerminal(t *testing.T) {
	const parallel = 30
	for _, k := range kinds {
		runs := 1000
		if k.name == "containerd" && os.Getenv(tortureEnv) == "" {
			runs = 100 // a thousand are in make torture
		}
		t.Run(k.name, func(t *testing.T) {
			n := k.start(t)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			var next, early atomic.Int64
			var group sync.WaitGroup
			for range parallel {
				group.Go(func() {
					for i := next.Add(1); i <= int64(runs) && ctx.Err() == nil; i = next.Add(1) {
						began, err := n.shortLog(ctx, k, i%2 == 0)
						if err != nil {
							t.Error(err)
							cancel()
							return
						}
						if began {
							early.Add(1)
						}
					}
				})
			}
			group.Wait()
			t.Logf("%d runs, %d of which were followed before they ended", runs, early.Load())
			if early.Load() == 0 {
				t.Error("no log was followed before the end of its run")
			}
		})
	}
}

// shortLog runs a command that ends at once without a newline, reads its log with a
// follower from the beginning, and once more when the status is terminal. early tells
// whether the follower began before the end.
func (n *node) shortLog(ctx context.Context, k kind, onStderr bool) (early bool, err error) {
	script, want, code := `printf 'a\nlast'`, [2]string{"a\nlast", ""}, int32(0)
	if onStderr {
		script, want, code = "printf x >&2; exit 1", [2]string{"", "x"}, 1
	}
	spec := &errandv1.RunSpec{Command: []string{"sh", "-c", script}}
	if spec.Driver = k.name; k.name == "containerd" {
		spec.Image = "busybox"
	}
	created, err := n.Runs.Create(ctx, &errandv1.CreateRunRequest{Spec: spec})
	if err != nil {
		return false, err
	}
	id := created.GetRun().GetId()
	followed := make(chan error, 1)
	began := time.Now()
	go func() { followed <- n.wantOutput(ctx, id, true, want) }()
	ended, err := n.Runs.Wait(ctx, &errandv1.WaitRunRequest{Id: id})
	if err != nil {
		return false, err
	}
	if run := ended.GetRun(); run.ExitCode == nil || run.GetExitCode() != code || !run.GetAttempts()[0].GetLogComplete() {
		return false, fmt.Errorf("run %s is %v", id, run)
	}
	if err := n.wantOutput(ctx, id, false, want); err != nil {
		return false, err
	}
	return began.Before(ended.GetRun().GetEndedAt().AsTime()), <-followed
}

// wantOutput reads a log to its end, which must hold exactly this on stdout and stderr.
func (n *node) wantOutput(ctx context.Context, id string, follow bool, want [2]string) error {
	stream, err := n.Runs.Logs(ctx, &errandv1.LogsRequest{Id: id, Follow: follow})
	if err != nil {
		return err
	}
	var got [2]string
	complete := false
	for stream.Receive() {
		for _, chunk := range stream.Msg().GetChunks() {
			i := 0
			if chunk.GetStream() == errandv1.Stream_STREAM_STDERR {
				i = 1
			}
			got[i] += string(chunk.GetData())
		}
		if end := stream.Msg().GetEnd(); end != nil {
			complete = end.GetComplete()
		}
	}
	if err := stream.Err(); err != nil {
		return err
	}
	if got != want || !complete {
		return fmt.Errorf("run %s, follow %t: log %q, complete %t", id, follow, got, complete)
	}
	return stream.Close()
}

// LOG-01: one line of more than a MiB is exact, as it is shown while it is written and
// afterwards.
func TestLogOfOneVeryLongLineIsExact(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			n := k.start(t)
			const script = `head -c 1048576 /dev/urandom | base64 -w0 > /tmp/$ERRAND_RUN_ID; sha256sum < /tmp/$ERRAND_RUN_ID >&2; cat /tmp/$ERRAND_RUN_ID; rm /tmp/$ERRAND_RUN_ID`
			shown := n.errand(t, slices.Concat([]string{"run"}, k.args, []string{"--", "sh", "-c", script})...)
			id := strings.TrimSpace(n.errand(t, "runs", "-q").stdout)
			for _, r := range []result{shown, n.errand(t, "logs", id), n.errand(t, "logs", "-f", id)} {
				sum := sha256.Sum256([]byte(r.stdout))
				if r.code != 0 || len(r.stdout) <= 1<<20 || !strings.HasPrefix(r.stderr, hex.EncodeToString(sum[:])) {
					t.Errorf("code %d, %d bytes of sum %x; the command says %s", r.code, len(r.stdout), sum, r.stderr)
				}
			}
		})
	}
}
