package daemon_test

import (
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/errand-run/errand/nodes/sandbox/containerd/images/imagetest"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images/registrytest"
)

// cause is what the tests read of one in `errand why -o json`.
type cause struct{ Code, Message, Node string }

func (n *node) why(t *testing.T, id string) (causes []cause) {
	t.Helper()
	var view struct {
		Causes []cause `json:"causes"`
	}
	r := n.errand(t, "why", id, "-o", "json")
	if err := json.Unmarshal([]byte(r.stdout), &view); err != nil || r.code != 0 {
		t.Fatalf("errand why %s: %+v, %v", id, r, err)
	}
	return view.Causes
}

// awaitCause returns when a run is explained by a cause whose words are like this.
func (n *node) awaitCause(t *testing.T, id, code, words string) {
	t.Helper()
	pattern := regexp.MustCompile(words)
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) { // nobody is told
		causes := n.why(t, id)
		if slices.ContainsFunc(causes, func(c cause) bool { return c.Code == code && pattern.MatchString(c.Message) }) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("why is %+v, want %s like %q\nnode: %s", causes, code, words, n.log)
		}
	}
}

// A run that waits for its image says how far that has come, and when that fails what
// has failed and when it is tried again.
func TestRunThatWaitsForItsImageSaysSo(t *testing.T) {
	t.Parallel()
	n := startContainerNode(t)
	r := registrytest.New(false)
	t.Cleanup(r.Close)
	// A layer of its own, which nothing compresses.
	noise := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	described := imagetest.Busybox()
	described.Files = append(described.Files, imagetest.File{Path: "noise", Mode: 0o644, Content: noise})
	built, err := imagetest.Build(described)
	if err != nil {
		t.Fatal(err)
	}
	image, err := r.Add("noisy", "1", built)
	if err != nil {
		t.Fatal(err)
	}
	var mode atomic.Value
	mode.Store("down")
	r.Misbehave(func(request *http.Request) *registrytest.Fault {
		blob := request.Method == http.MethodGet && strings.Contains(request.URL.Path, "/blobs/")
		switch mode.Load() {
		case "down":
			return &registrytest.Fault{Status: http.StatusServiceUnavailable}
		case "slow":
			if blob {
				return &registrytest.Fault{Slow: 30 * time.Millisecond}
			}
		}
		return nil
	})
	id := strings.TrimSpace(n.errand(t, "run", "-d", image, "--", "true").stdout)
	n.awaitCause(t, id, "BACKOFF", `^it is not placed before [0-9.]+m?s have passed: node .*: pull image .*noisy:1: .*503`)
	n.awaitCause(t, id, "START_DEADLINE_AT", `^it fails unless it is started within 4m`)
	mode.Store("slow")
	n.awaitCause(t, id, "PULLING", `^node .* pulls image .*noisy:1: [0-9.]+ KiB of [0-9.]+ [KM]iB are here, [0-9.]+ [KM]iB/s, for `)
	mode.Store("")
	if got := n.errand(t, "wait", id); got.code != 0 {
		t.Errorf("wait gave %+v\nnode: %s", got, n.log)
	}
	if left := n.eventTexts(t, id, "LEFT"); len(left) == 0 || !strings.Contains(left[0], "503") {
		t.Errorf("events: %q", left)
	}
}
