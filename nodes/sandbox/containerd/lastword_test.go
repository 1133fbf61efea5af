package containerd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/guest/status"
)

// playInit puts a script into init's place that leaves the words of a status file and
// goes on as told.
func (b *bench) playInit(then string, words ...status.Status) {
	b.t.Helper()
	var script strings.Builder
	// It is started as the logger too, outside.
	fmt.Fprintf(&script, "#!/bin/sh\nif [ \"$1\" = log ]; then exec %s \"$@\"; fi\n", b.d.config.Init)
	for _, word := range words {
		file := status.Encode(word)
		for slot := range len(file) / status.SlotSize {
			line := bytes.TrimRight(file[slot*status.SlotSize:(slot+1)*status.SlotSize], "\x00")
			if len(line) > 0 {
				fmt.Fprintf(&script, "echo '%s' | dd of=%s bs=%d seek=%d conv=notrunc 2>/dev/null\n",
					bytes.TrimSpace(line), insideStatus, status.SlotSize, slot)
			}
		}
	}
	script.WriteString(then + "\n")
	path := filepath.Join(b.t.TempDir(), "init")
	if err := os.WriteFile(path, []byte(script.String()), 0o755); err != nil {
		b.t.Fatal(err)
	}
	b.d.config.Init = path
}

func TestInitThatFailsWhileItStartsIsAStartErrorAndNoCode(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	b.playInit("exit 2", status.Status{State: status.Starting, At: time.Now()})
	spec := b.spec("true")
	if err := b.d.Create(within(t), spec); err != nil {
		t.Fatal(err)
	}
	_, err := b.d.Start(within(t), spec.ID)
	var refused *sandbox.StartError
	if !errors.As(err, &refused) || !refused.Permanent || refused.Reason != recordv1.Reason_REASON_START_ERROR {
		t.Errorf("got %v", err)
	}
	exit := b.wait(spec.ID)
	if exit.Code != nil || exit.Reason != recordv1.Reason_REASON_START_ERROR || !exit.StartedAt.IsZero() {
		t.Errorf("got %+v", exit)
	}
	b.end(spec)
}

func TestInitThatFailsWhileTheCommandRunsIsLostAndHasNoCode(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	now := time.Now()
	b.playInit("sleep 0.2; exit 2", status.Status{State: status.Starting, At: now}, status.Status{State: status.Running, StartedAt: now, At: now})
	spec := b.spec("true")
	b.start(spec)
	b.isLost(b.wait(spec.ID))
	b.end(spec)
}

func TestKillOfAnInitThatHasToldTheEndLeavesItsWord(t *testing.T) {
	now := time.Now()
	for name, last := range map[string]status.Status{
		"exited 0":    {State: status.Exited, StartedAt: now, At: now},
		"signaled 15": {State: status.Signaled, Value: 15, StartedAt: now, At: now},
	} {
		t.Run(name, func(t *testing.T) {
			b := setUp(t)
			defer b.finish()
			b.playInit("exec sleep 3600", status.Status{State: status.Starting, At: now}, last)
			spec := b.spec("true")
			b.start(spec)
			eventually(t, "init has told the end", func() bool {
				s, _, err := b.d.readStatus(spec.ID)
				return err == nil && s.State == last.State
			})
			if _, err := b.d.Kill(within(t), spec.ID); err != nil {
				t.Fatal(err)
			}
			exit := b.wait(spec.ID)
			b.isCode(exit, int32(last.ExitCode()))
			if exit.Signal != signalOf(last) || exit.Source != sourceInit {
				t.Errorf("got %+v", exit)
			}
			for _, entry := range b.logs.All() {
				t.Errorf("logged: %s", entry.Message)
			}
			b.end(spec)
		})
	}
}

// The runtime writes to the command's stderr what it has to say, of the environment too.
func TestWordsOfTheRuntimeAreNotTheCommandsOutput(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	path := filepath.Join(t.TempDir(), "init")
	// An interpreter that the host has, for the logger, and the image has not.
	if err := os.WriteFile(path, []byte("#!/bin/bash\nexec "+b.d.config.Init+" \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	b.d.config.Init = path
	spec := b.spec("true")
	if err := b.d.Create(within(t), spec); err != nil {
		t.Fatal(err)
	}
	var refused *sandbox.StartError
	if _, err := b.d.Start(within(t), spec.ID); !errors.As(err, &refused) {
		t.Errorf("got %v", err)
	}
	if out := b.end(spec); out != "" {
		t.Errorf("the log has %q", out)
	}
}
