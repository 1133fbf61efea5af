package containerd

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

func TestImageDefaultsFillWhatTheRunLeavesOpen(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	spec := b.spec()
	spec.Spec.User = ""
	out, exit := b.run(spec)
	if out != "from the image\n" || exit.Code == nil || *exit.Code != 33 {
		t.Errorf("%q, %+v", out, exit)
	}

	spec = b.spec("sh", "-c", "id -u; id -g; id -G; pwd; echo $FROM_IMAGE $BOTH $OWN $HOME")
	spec.Spec.User = ""
	spec.Spec.Env = []string{"BOTH=run", "OWN=run"}
	if out, _ := b.run(spec); out != "65534\n65534\n65534 50\n/image/dir\nimage run run /\n" {
		t.Errorf("%q", out)
	}
}

func TestSandboxIsIsolated(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	cases := []struct {
		name, script, want string
		change             func(*recordv1.Spec)
	}{
		{name: "no capability", script: "grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status | awk '{print $2}' | sort -u", want: "0000000000000000\n"},
		{name: "no new privileges and a seccomp filter", script: "grep -E 'NoNewPrivs|Seccomp:' /proc/self/status | awk '{print $2}'", want: "1\n2\n"},
		{name: "not kept from the OOM killer", script: "cat /proc/self/oom_score_adj", want: "0\n"},
		{name: "loopback only", script: "ls /sys/class/net", want: "lo\n"},
		{name: "processes of its own", script: "test $(ls -d /proc/[0-9]* | wc -l) -lt 8 && cat /proc/1/cmdline | tr '\\0' ' ' | cut -d' ' -f1,2", want: "/run/errand/init init\n"},
		{name: "init can not be changed", script: "echo x > /run/errand/init || rm -f /run/errand/init || mount -o remount,rw /run/errand/init || echo no", want: "no\n"},
		{name: "the root can be written", script: "echo x > /file && cat /file", want: "x\n"},
		{name: "a read-only root can not", script: "echo x > /file || echo no", want: "no\n", change: func(s *recordv1.Spec) { s.ReadOnlyRoot = true }},
		{name: "a user by name", script: "id -u; id -g; id -G", want: "65534\n65534\n65534 50\n", change: func(s *recordv1.Spec) { s.User = "nobody" }},
		{name: "a user and group by number", script: "id -u; id -g; id -G", want: "12\n34\n34\n", change: func(s *recordv1.Spec) { s.User = "12:34" }},
		{name: "a user by number takes the image's group", script: "id -g", want: "65534\n", change: func(s *recordv1.Spec) { s.User = "65534" }},
		{name: "a user by number without an entry takes the group of the same number", script: "id -u; id -g; id -G", want: "99999\n99999\n99999\n", change: func(s *recordv1.Spec) { s.User = "99999" }},
		{name: "a user by number takes the image's group by name", script: "id -u; id -g", want: "99999\n50\n", change: func(s *recordv1.Spec) { s.User = "99999:staff" }},
		{name: "a user and group by name", script: "id -u; id -g", want: "65534\n50\n", change: func(s *recordv1.Spec) { s.User = "nobody:staff" }},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			spec := b.spec("sh", "-c", "{ "+tc.script+"; } 2>/dev/null")
			if tc.change != nil {
				tc.change(spec.Spec)
			}
			if out, _ := b.run(spec); out != tc.want {
				t.Errorf("got %q, want %q", out, tc.want)
			}
		})
	}
}

func TestPidsLimitHolds(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	spec := b.spec("sh", "-c", "i=0; while [ $i -lt 60 ]; do sleep 5 & i=$((i+1)); done; echo all")
	spec.Spec.PidsLimit = 30
	if out, _ := b.run(spec); !strings.Contains(out, "can't fork") {
		t.Errorf("60 processes came into being under a limit of 30: %q", out)
	}
}

// Neither the runtime nor init takes its processes from the command's.
func TestLowPidsLimitLeavesTheCommandItsProcesses(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	for limit := int64(1); limit <= 5; limit++ {
		spec := b.spec("sh", "-c", "exit 7")
		spec.Spec.PidsLimit = limit
		if out, exit := b.run(spec); out != "" || exit.Code == nil || *exit.Code != 7 {
			t.Errorf("limit %d: %q, %+v", limit, out, exit)
		}
	}
	spec := b.spec("sh", "-c", "sleep 0.1 & sleep 0.1 & sleep 0.1 & wait; exit 7")
	spec.Spec.PidsLimit = 4
	if out, exit := b.run(spec); out != "" || exit.Code == nil || *exit.Code != 7 {
		t.Errorf("four processes with a limit of four: %q, %+v", out, exit)
	}
}

// The runtime of init ends it when it gets no thread.
func TestInitPassesSignalsOnWhenNoProcessCanBeMade(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	spec := b.spec("sh", "-c", `trap 'exit 9' TERM; trap : USR1; (while :; do (sleep 3600 &) || break; done) 2>/dev/null; echo full; while :; do :; done`)
	spec.Spec.PidsLimit = 20
	b.start(spec)
	b.awaitOutput(spec, "full")
	for _, signal := range []unix.Signal{unix.SIGUSR1, unix.SIGWINCH, unix.SIGUSR1, unix.SIGTERM} {
		if delivered, err := b.d.Signal(within(t), spec.ID, int(signal)); err != nil || !delivered {
			t.Fatalf("%v: %v, %v", signal, delivered, err)
		}
	}
	b.isCode(b.wait(spec.ID), 9)
	if out := b.end(spec); out != "full\n" {
		t.Errorf("got %q", out)
	}
}

// What can be known to be wrong before the start is refused for good, and leaves
// nothing.
func TestCreateRefusesForGoodWhatCanNotWork(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	cases := []struct {
		name   string
		change func(*recordv1.Spec)
		reason recordv1.Reason
		say    string
	}{
		{"no image", func(s *recordv1.Spec) { s.Image = "" }, recordv1.Reason_REASON_START_ERROR, "names no image"},
		{"an absent image", func(s *recordv1.Spec) {
			s.Image, s.Pull = "absent:1", recordv1.PullPolicy_PULL_POLICY_NEVER
		}, recordv1.Reason_REASON_IMAGE_NOT_FOUND, `docker.io/library/absent:1 is not on this node, and the run is never to pull it: import it with "errand image import"`},
		{"what is no image name", func(s *recordv1.Spec) { s.Image = "NO NAME" }, recordv1.Reason_REASON_IMAGE_NOT_FOUND, "not an image name"},
		{"an unknown user", func(s *recordv1.Spec) { s.User = "stranger" }, recordv1.Reason_REASON_START_ERROR, `user "stranger" is unknown`},
		{"an unknown group", func(s *recordv1.Spec) { s.User = "nobody:stranger" }, recordv1.Reason_REASON_START_ERROR, "is unknown"},
		{"a relative working directory", func(s *recordv1.Spec) { s.WorkingDir = "x" }, recordv1.Reason_REASON_START_ERROR, "absolute path"},
		{"too little memory", func(s *recordv1.Spec) { s.MemoryBytes = 1 << 20 }, recordv1.Reason_REASON_START_ERROR, "memory limit"},
		{"a NUL in the environment", func(s *recordv1.Spec) { s.Env = []string{"KEY=" + secret + "\x00"} }, recordv1.Reason_REASON_START_ERROR, "NUL"},
		{"a huge environment", func(s *recordv1.Spec) { s.Env = []string{"KEY=" + strings.Repeat(secret, 400_000)} }, recordv1.Reason_REASON_START_ERROR, `"KEY" has`},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			spec := b.spec("true")
			tc.change(spec.Spec)
			err := b.d.Create(within(t), spec)
			var refused *sandbox.StartError
			if !errors.As(err, &refused) || !refused.Permanent || refused.Reason != tc.reason || !strings.Contains(refused.Message, tc.say) {
				t.Errorf("got %v", err)
			}
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("the environment is told: %.200v", err)
			}
			for _, leak := range leaks(t, b.d) {
				t.Errorf("left over: %s", leak)
			}
		})
	}
}

// Starts are driven into the runtime's own failures; what it says may quote the
// environment, and nothing of that may reach an error, a log or a record.
func TestNoFailureTellsTheEnvironment(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	var told strings.Builder
	try := func(change func(*sandbox.Spec), command ...string) {
		spec := b.spec(command...)
		spec.Spec.Env = []string{"TOKEN=" + secret}
		change(&spec)
		err := b.d.Create(within(t), spec)
		if err == nil {
			_, err = b.d.Start(within(t), spec.ID)
			if exit, waitErr := b.d.Wait(within(t), spec.ID); waitErr == nil {
				told.WriteString(exit.Message)
			} else {
				told.WriteString(waitErr.Error())
			}
			b.end(spec)
		}
		if err == nil {
			t.Errorf("%q started", command)
			return
		}
		for ; err != nil; err = errors.Unwrap(err) {
			told.WriteString(err.Error() + "\n")
		}
	}
	nothing := func(*sandbox.Spec) {}
	try(nothing, "no-such-command")
	try(nothing, "/test/no-format")
	try(func(s *sandbox.Spec) { s.Spec.WorkingDir = "/no/such" }, "true")
	init := b.d.config.Init
	b.d.config.Init = "/no/such/" + "init"
	try(nothing, "true")
	b.d.config.Init = "/etc/passwd"
	try(nothing, "true")
	b.d.config.Init = init
	runtime := b.d.config.Runtime
	b.d.config.Runtime = "io.containerd.absent.v9"
	try(nothing, "true")
	b.d.config.Runtime = runtime
	for _, entry := range b.logs.All() {
		told.WriteString(entry.Message)
		for _, field := range entry.Context {
			told.WriteString(field.String)
		}
	}
	if strings.Contains(told.String(), secret) {
		t.Errorf("the environment is told: %s", told.String())
	}
}

func TestCreateTwiceIsAConflictAndLeavesTheFirstAlone(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	spec := b.spec("true")
	b.start(spec)
	if err := b.d.Create(within(t), spec); records.ClassOf(err) != records.ClassConflict {
		t.Errorf("got %v", err)
	}
	if exit := b.wait(spec.ID); exit.Code == nil || *exit.Code != 0 {
		t.Errorf("the first: %+v", exit)
	}
	b.end(spec)
}

func TestListLeavesOutOtherNodesSandboxes(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	other := &bench{t: t, dir: t.TempDir(), node: "another-node"}
	other.open(b.d.config.Address)
	defer other.d.Close()
	spec := b.spec("true")
	b.start(spec)
	b.wait(spec.ID)
	found, err := other.d.List(within(t))
	if err != nil || len(found) != 0 {
		t.Errorf("another node lists %+v, %v", found, err)
	}
	if idle, err := b.d.Idle(within(t)); err != nil || idle {
		t.Errorf("idle with a sandbox: %v, %v", idle, err)
	}
	b.end(spec)
}
