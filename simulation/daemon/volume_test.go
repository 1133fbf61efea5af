package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images/imagetest"
)

// shippedNode builds errand-node as it ships: the race detector's memory is not its own.
var shippedNode = sync.OnceValues(func() (string, error) {
	path := filepath.Join(binaries, "errand-node-shipped")
	command := exec.Command("go", "build", "-o", path, "./cmd/node")
	command.Dir = filepath.Join("..", "..")
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build errand-node: %w\n%s", err, output)
	}
	return path, nil
})

// importCoreutils imports an image with this machine's own yes and head, which busybox's
// are many times slower than, and returns its name.
func (n *node) importCoreutils(t *testing.T) (name string) {
	t.Helper()
	image := imagetest.Busybox()
	image.Name = "docker.io/library/coreutils:1"
	paths := []string{"/usr/bin/yes", "/usr/bin/head"}
	needs, err := exec.CommandContext(t.Context(), "ldd", paths...).Output()
	if err != nil {
		t.Fatalf("ldd %v: %v", paths, err)
	}
	for word := range strings.FieldsSeq(string(needs)) {
		if strings.HasPrefix(word, "/lib") && !slices.Contains(paths, word) {
			paths = append(paths, word)
		}
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		image.Files = append(image.Files, imagetest.File{Path: strings.TrimPrefix(path, "/"), Content: content, Mode: 0o755})
	}
	archive := filepath.Join(t.TempDir(), "coreutils.tar")
	file, err := os.Create(archive)
	if err == nil {
		err = errors.Join(imagetest.Write(file, image), file.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if r := n.errand(t, "image", "import", archive); r.code != 0 {
		t.Fatalf("image import: %+v", r)
	}
	return image.Name
}

var residentPeak = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// peakBytes is the most memory that a process has had resident, 0 of one that has ended.
func peakBytes(pid int) int64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	match := residentPeak.FindSubmatch(status)
	if err != nil || match == nil {
		return 0
	}
	kib, _ := strconv.ParseInt(string(match[1]), 10, 64) // it has matched
	return kib << 10
}

// storedLogs is how many bytes the logs of a run take on the disk.
func (n *node) storedLogs(t *testing.T, id string) (total int64) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(n.data, "logs"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.Contains(path, id) {
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // its writer has removed it
		}
		if err == nil {
			total += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return total
}

// viewed is what one errand logs has shown, without keeping it.
type viewed struct {
	bytes, peak int64
	stderr      string
	code        int
	took        time.Duration
}

// view runs errand logs with its output counted and thrown away.
func (n *node) view(ctx context.Context, t *testing.T, args ...string) viewed {
	t.Helper()
	command := exec.CommandContext(ctx, filepath.Join(binaries, "errand"), append([]string{"logs"}, args...)...)
	command.Env = append(os.Environ(), "ERRAND_ADDRESS="+n.Address)
	var stderr strings.Builder
	command.Stderr = &stderr
	begun := time.Now()
	output, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	var v viewed
	if err != nil {
		t.Error(err)
		return v
	}
	for buffer := make([]byte, 64<<10); err == nil; {
		var got int
		got, err = output.Read(buffer)
		// What the system says of the dead counts what they were forked from.
		if before := v.bytes >> 22; (v.bytes+int64(got))>>22 != before || v.peak == 0 {
			v.peak = max(v.peak, peakBytes(command.Process.Pid))
		}
		v.bytes += int64(got)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if waited := command.Wait(); err != nil || waited != nil {
		t.Errorf("errand logs %v: %v, %v\n%s", args, err, waited, &stderr)
	}
	v.stderr, v.code, v.took = stderr.String(), command.ProcessState.ExitCode(), time.Since(begun)
	return v
}

// delays reads what a run writes as it is written, each line the time at which it was,
// and returns the longest time that one took to come.
func (n *node) delays(ctx context.Context, id string) (longest time.Duration, lines int, err error) {
	stream, err := n.Runs.Logs(ctx, &errandv1.LogsRequest{Id: id, Follow: true})
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
		for _, chunk := range stream.Msg().GetChunks() {
			for line := range strings.Lines(string(chunk.GetData())) {
				seconds, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
				if err != nil {
					return longest, lines, fmt.Errorf("a line is %q", line)
				}
				// The line tells whole seconds, so it was written up to one later.
				longest, lines = max(longest, time.Since(time.Unix(seconds+1, 0))), lines+1
			}
		}
	}
	if ctx.Err() != nil {
		return longest, lines, nil
	}
	return longest, lines, stream.Err()
}

var missing = regexp.MustCompile(`up to (\d+) bytes of the output are missing`)

// LOG-03: output without bound fills no disk and freezes nobody. The newest is kept, what
// was dropped is counted, the memory of daemon and viewer stays small, and the logs of
// others flow.
func TestVeryLargeOutputIsBoundedAndFreezesNobody(t *testing.T) {
	const (
		limit    = 50 << 20
		chunk    = 64 << 10
		nodeMax  = 200 << 20
		viewMax  = 100 << 20
		delayMax = 2*time.Second + busy
		written  = int64(2 << 30)
	)
	binary, err := shippedNode()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			if k.name == "containerd" {
				needContainerd(t)
			}
			n := (&node{binary: binary}).startWith(t, slices.Concat(k.flags, []string{"--log-bytes", strconv.Itoa(limit)})...)
			yes := k
			if k.name == "containerd" {
				n.importBusybox(t)
				yes.args = []string{n.importCoreutils(t)}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			other := k.detach(t, n, nil, "sh", "-c", "while :; do date +%s; sleep 0.2; done")
			n.awaitRunning(ctx, t, other)
			following, unfollow := context.WithCancel(ctx)
			defer unfollow()
			var longest time.Duration
			var lines int
			var group sync.WaitGroup
			group.Go(func() {
				var err error
				if longest, lines, err = n.delays(following, other); err != nil {
					t.Error(err)
				}
			})
			id := yes.detach(t, n, nil, "sh", "-c", fmt.Sprintf("/usr/bin/yes | /usr/bin/head -c %d", written))
			n.awaitRunning(ctx, t, id)
			var follower viewed
			group.Go(func() { follower = n.view(ctx, t, "-f", id) })
			var slowest time.Duration
			for s := n.show(t, id); s.Status == "RUNNING"; s = n.show(t, id) {
				tail := n.view(ctx, t, "--tail", "10", id)
				slowest = max(slowest, tail.took)
				if stored := n.storedLogs(t, id); stored > limit+chunk {
					t.Errorf("while it runs %d bytes of its log are stored, more than %d and a chunk", stored, limit)
				}
			}
			if r := n.errand(t, "wait", id); r.code != 0 {
				t.Errorf("wait gave %+v: %+v", r, n.show(t, id))
			}
			unfollow()
			group.Wait()
			stored := n.storedLogs(t, id)
			kept := n.view(ctx, t, id)
			match := missing.FindStringSubmatch(kept.stderr)
			if match == nil {
				t.Fatalf("errand logs says of what was dropped %q", kept.stderr)
			}
			dropped, err := strconv.ParseInt(match[1], 10, 64)
			if err != nil || stored > limit+chunk || stored < limit/2 || kept.bytes+dropped < written {
				t.Errorf("%d bytes are stored, %d shown, %d said to be missing, %v; %d were written", stored, kept.bytes, dropped, err, written)
			}
			n.wantLogAlert(t, id, "its log is not known to be complete", "other")
			if tail := n.errand(t, "logs", "--tail", "3", id); tail.stdout != "y\ny\ny\n" {
				t.Errorf("the end of the log is %q", tail.stdout)
			}
			peak := peakBytes(n.PID())
			t.Logf("%d MiB written, %d MiB stored; daemon %d MiB, viewers %d and %d MiB; other log: %d lines, the slowest %s late; the slowest look at the end %s",
				written>>20, stored>>20, peak>>20, follower.peak>>20, kept.peak>>20, lines, longest, slowest)
			if peak > nodeMax || follower.peak > viewMax || kept.peak > viewMax {
				t.Errorf("the daemon took %d bytes of memory, the viewers %d and %d", peak, follower.peak, kept.peak)
			}
			if longest > delayMax || lines == 0 || slowest > delayMax {
				t.Errorf("%d lines of another run came up to %s late, the end was shown after up to %s", lines, longest, slowest)
			}
			n.errand(t, "cancel", "--force", other)
			n.errand(t, "wait", other)
		})
	}
}

// wantLogAlert wants everybody to hear that the log of the node's only such run is not
// whole: who asks for the run, and who watches the node.
func (n *node) wantLogAlert(t *testing.T, id, text, cause string) {
	t.Helper()
	if events := n.eventTexts(t, id, "LOG_INCOMPLETE"); len(events) != 1 || events[0] != text {
		t.Errorf("events: %q", events)
	}
	if why := n.errand(t, "why", id).stdout; !strings.Contains(why, text) {
		t.Errorf("why: %s", why)
	}
	answer, err := http.Get(n.Address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := io.ReadAll(answer.Body)
	if err = errors.Join(err, answer.Body.Close()); err != nil {
		t.Fatal(err)
	}
	for _, one := range []string{"disk", "other"} {
		want := `errand_logs_incomplete_total{cause="` + one + `"} 0`
		if one == cause {
			want = strings.TrimSuffix(want, "0") + "1"
		}
		if !strings.Contains(string(metrics), want+"\n") {
			t.Errorf("the metrics have no %s:\n%s", want, metrics)
		}
	}
}

// LOG-03: a full disk under the logs ends no command. The log says that it is not whole,
// and so does the daemon's.
func TestFullDiskUnderTheLogsEndsNoCommand(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root, for a small disk")
		}
		t.Skip("needs root, for a small disk")
	}
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			n := k.start(t)
			logs := filepath.Join(n.data, "logs")
			if err := unix.Mount("tmpfs", logs, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := unix.Unmount(logs, unix.MNT_DETACH); err != nil {
					t.Error(err)
				}
			})
			id := k.detach(t, n, nil, "sh", "-c", "yes | head -c 33554432; exit 7")
			if r := n.errand(t, "wait", id); r.code != 7 {
				t.Errorf("wait gave %+v: %+v", r, n.show(t, id))
			}
			if s := n.show(t, id); s.Status != "FAILED" || s.ExitCode == nil || *s.ExitCode != 7 || s.Attempts[0].LogComplete {
				t.Errorf("the run is %+v", s)
			}
			r := n.view(t.Context(), t, id)
			if r.bytes == 0 || r.bytes > size || !strings.Contains(r.stderr, "bytes") {
				t.Errorf("errand logs showed %d bytes and said %q", r.bytes, r.stderr)
			}
			n.wantLogAlert(t, id, "output is missing from its log: the disk of the logs did not take it", "disk")
			if log := n.log.String(); !strings.Contains(log, "log of a run is not complete") || !strings.Contains(log, "the disk of the logs did not take all") {
				t.Errorf("the daemon says nothing of it:\n%s", log)
			}
		})
	}
}
