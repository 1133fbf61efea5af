package cli

import (
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/errand-run/errand/api/fakeapi"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/messages/errand/v1/errandv1connect"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs.\ngot:\n%s\nwant:\n%s", name, got, want)
	}
}

var goldenNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func before(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(goldenNow.Add(-d)) }

// goldenRuns has a run of each shape: one without an attempt, one that goes on,
// ones that ended by an exit, a kill and before their start.
func goldenRuns() []*errandv1.Run {
	code := func(c int32) *int32 { return &c }
	return []*errandv1.Run{
		{
			Id: "r.shop.aaaa1111", App: "shop", Name: "nightly", Trigger: errandv1.Trigger_TRIGGER_MANUAL,
			Labels: map[string]string{"commit": "4f1c", "by": "ann"},
			Spec: &errandv1.RunSpec{
				Driver: "containerd", Image: "busybox", Command: []string{"sh", "-c", "echo it's; exit 17"},
				Env:        map[string]string{"TOKEN": "hunter2", "A": "1"},
				WorkingDir: "/w", User: "1000:1000", CpuMillis: 500, MemoryBytes: 64 << 20, PidsLimit: 64, ReadOnlyRoot: true,
				Timeout: durationpb.New(90 * time.Minute), StartDeadline: durationpb.New(5 * time.Minute), StopGrace: durationpb.New(10 * time.Second),
				Retry: &errandv1.Retry{
					Retries: 3, Only: []string{"1-63", "oom"}, Never: []string{"17"}, Backoff: durationpb.New(time.Second), BackoffMax: durationpb.New(time.Minute),
					JitterPercent: code(10), OnNodeLoss: errandv1.OnNodeLoss_ON_NODE_LOSS_RETRY,
				},
			},
			Status: errandv1.Status_STATUS_FAILED, Reason: errandv1.Reason_REASON_EXIT_CODE, Message: "the command exited with 17",
			CreatedAt: before(3 * time.Hour), QueuedAt: before(3 * time.Hour), StartedAt: before(3*time.Hour - time.Second),
			EndedAt: before(3*time.Hour - 2500*time.Millisecond), ExitCode: code(17),
			Attempts: []*errandv1.Attempt{{
				Number: 1, Node: "n1", StartedAt: before(3*time.Hour - time.Second), EndedAt: before(3*time.Hour - 2500*time.Millisecond),
				ExitCode: code(17), Reason: errandv1.Reason_REASON_EXIT_CODE, LogComplete: true, Status: errandv1.Status_STATUS_FAILED,
			}},
		},
		{
			Id: "r.default.bbbb2222", App: "default", Trigger: errandv1.Trigger_TRIGGER_API, Spec: &errandv1.RunSpec{Image: "busybox", Command: []string{"hog"}},
			Status: errandv1.Status_STATUS_FAILED, Reason: errandv1.Reason_REASON_OOM_KILLED, Message: "killed: out of memory",
			CreatedAt: before(50 * time.Hour), QueuedAt: before(50 * time.Hour), StartedAt: before(50 * time.Hour), EndedAt: before(49 * time.Hour), ExitCode: code(137),
			Attempts: []*errandv1.Attempt{{
				Number: 1, Node: "n2", StartedAt: before(50 * time.Hour), EndedAt: before(49 * time.Hour), ExitCode: code(137), Signal: 9,
				OomKilled: true, Reason: errandv1.Reason_REASON_OOM_KILLED, Status: errandv1.Status_STATUS_FAILED,
			}},
		},
		{
			Id: "r.default.cccc3333", App: "default", Trigger: errandv1.Trigger_TRIGGER_MANUAL, Spec: &errandv1.RunSpec{Image: "nope"},
			Status: errandv1.Status_STATUS_FAILED, Reason: errandv1.Reason_REASON_IMAGE_NOT_FOUND, Message: "no image \"nope\"\x1b[31m",
			CreatedAt: before(4 * time.Minute), QueuedAt: before(4 * time.Minute), EndedAt: before(4 * time.Minute),
		},
		{
			Id: "r.default.dddd4444", App: "default", Trigger: errandv1.Trigger_TRIGGER_MANUAL, Spec: &errandv1.RunSpec{Driver: "process", Command: []string{"sleep", "60"}},
			Status: errandv1.Status_STATUS_RUNNING, Stopping: errandv1.Reason_REASON_CANCELED,
			CreatedAt: before(42 * time.Second), QueuedAt: before(42 * time.Second), StartedAt: before(41 * time.Second),
			Attempts: []*errandv1.Attempt{{Number: 1, Node: "n1", StartedAt: before(41 * time.Second), Status: errandv1.Status_STATUS_RUNNING}},
		},
		{
			Id: "r.default.eeee5555", App: "default", Name: "wartend-ä", Trigger: errandv1.Trigger_TRIGGER_MANUAL, Spec: &errandv1.RunSpec{Image: "busybox"},
			Status: errandv1.Status_STATUS_PENDING, CreatedAt: before(300 * time.Millisecond), QueuedAt: before(300 * time.Millisecond),
		},
	}
}

// stoppedRun has an attempt of each kind of stop: one that took TERM and KILL, one
// whose signals are not all known to have arrived.
func stoppedRun() *errandv1.Run {
	code := int32(137)
	sent := func(signal int32, ago time.Duration, reason errandv1.Reason, delivered *bool) *errandv1.SentSignal {
		return &errandv1.SentSignal{Signal: signal, At: before(ago), Reason: reason, Delivered: delivered}
	}
	attempt := func(number int32, reason errandv1.Reason, signals ...*errandv1.SentSignal) *errandv1.Attempt {
		return &errandv1.Attempt{
			Number: number, Node: "n1", StartedAt: before(time.Hour), EndedAt: before(time.Hour - 8*time.Second), ExitCode: &code, Signal: 9,
			Reason: reason, Status: errandv1.Status_STATUS_TIMED_OUT, LogComplete: true, Signals: signals,
		}
	}
	yes, no := true, false
	return &errandv1.Run{
		Id: "r.stopped.ffff6666", App: "stopped", Trigger: errandv1.Trigger_TRIGGER_MANUAL, Spec: &errandv1.RunSpec{Driver: "process", Command: []string{"sleep", "60"}},
		Status: errandv1.Status_STATUS_TIMED_OUT, Reason: errandv1.Reason_REASON_TIMEOUT, Message: "the timeout of 5s has passed",
		CreatedAt: before(time.Hour), QueuedAt: before(time.Hour), StartedAt: before(time.Hour), EndedAt: before(time.Hour - 8*time.Second), ExitCode: &code,
		Attempts: []*errandv1.Attempt{
			attempt(1, errandv1.Reason_REASON_DRAINED,
				sent(15, time.Hour-time.Second, errandv1.Reason_REASON_DRAINED, nil), sent(15, time.Hour-2*time.Second, errandv1.Reason_REASON_TIMEOUT, &no),
				sent(9, time.Hour-3*time.Second, errandv1.Reason_REASON_TIMEOUT, nil), sent(99, time.Hour-3*time.Second, errandv1.Reason_REASON_UNSPECIFIED, &yes)),
			attempt(2, errandv1.Reason_REASON_TIMEOUT,
				sent(15, time.Hour-5*time.Second, errandv1.Reason_REASON_TIMEOUT, &yes), sent(9, time.Hour-8*time.Second-3*time.Millisecond, errandv1.Reason_REASON_TIMEOUT, &yes)),
		},
	}
}

// stoppedServer is apart from the list, whose output is a golden file of its own.
func stoppedServer(t *testing.T) *invocation {
	s := startFake(t, nil)
	s.Add(stoppedRun())
	i := newInvocation(t, s.URL())
	i.now = goldenNow
	return i
}

func TestShowSaysWhichStopSignalsWereSent(t *testing.T) {
	i := stoppedServer(t)
	for _, format := range []string{"table", "json", "yaml"} {
		t.Run(format, func(t *testing.T) {
			got := i.run("show", "r.stopped", "-o", format)
			if got.code != 0 || got.stderr != "" {
				t.Fatalf("%+v", got)
			}
			golden(t, "show-stopped."+format, got.stdout)
		})
	}
}

// explained gives causes and a history to a run of the list.
func explained(s *fakeapi.Server) {
	id := ""
	for _, run := range goldenRuns() {
		if strings.HasPrefix(run.GetId(), "r.default.b") {
			id = run.GetId()
		}
	}
	s.Causes = map[string][]*errandv1.Cause{id: {
		{Code: "FINISHED", Message: "FAILED (OOM_KILLED), 2m ago", At: before(2 * time.Minute)},
		{Code: "OOM_KILLED", Message: "attempt 1 on node n1: out of\x1b[31m memory", Node: "n1", Attempt: 1},
	}}
	s.Histories = map[string]*errandv1.RunHistory{id: {Events: []*errandv1.RunEvent{
		{At: before(time.Hour), Kind: "QUEUED", Message: "queued by trigger MANUAL"},
		{At: before(time.Minute), Kind: "EXITED", Attempt: 1, Node: "n1", Message: "exit code 137"},
	}}}
}

func goldenServer(t *testing.T) *invocation {
	s := startFake(t, func(s *fakeapi.Server) {
		s.Nodes = []*errandv1.Node{{
			Id: "n1", Uuid: "u1", Address: "127.0.0.1:7400", Version: "v0.1.0", Drivers: []string{"containerd", "process"}, CpuMillis: 2000,
			MemoryBytes: 8 << 30, SandboxesMax: 100, Sandboxes: 3, BootId: "b1", RegisteredAt: before(26 * time.Hour),
			LostScore:        []*errandv1.LostScore{{Driver: "containerd", Runs: 3, Share: 8, Cause: "START_ERROR: containerd does not\x1b answer", At: before(42 * time.Second), Until: before(-258 * time.Second)}},
			QuarantinedCount: 2, Quarantined: []*errandv1.Quarantined{
				{Sandbox: "e-abc", Driver: "process", Run: "r.default.lost", Attempt: 1, Since: before(90 * time.Minute), Until: before(-22 * time.Hour), Reason: "its start token is not that of the journal"},
				{Driver: "null", Run: "r.default.gone", Attempt: 2, Since: before(time.Minute), Reason: "nobody knows the run", Running: true},
			},
		}, {Id: "n2", Draining: true, Silent: true}, {Id: "n3", Uuid: "u3", Away: true, Sandboxes: 2}, {Id: "n4", Unready: []string{"no space: less than 128 MiB are free"}}}
		s.NodePulls = []*errandv1.ImagePull{{
			Reference: "docker.io/library/busybox:1", Phase: errandv1.PullPhase_PULL_PHASE_FETCHING, Bytes: 1 << 20, TotalBytes: 4 << 20, BytesPerSecond: 1 << 19,
			Layers: 2, LayersDone: 1, Runs: []string{"r.default.b"}, Since: before(3 * time.Second),
		}}
		explained(s)
		s.Images = []*errandv1.Image{{Name: "docker.io/library/busybox:latest", Digest: "sha256:feed", SizeBytes: 4321000, ImportedAt: before(5 * time.Hour)}}
	})
	for _, run := range goldenRuns() {
		s.Add(run)
	}
	i := newInvocation(t, s.URL())
	i.now = goldenNow
	return i
}

func TestRenderedOutputs(t *testing.T) {
	i := goldenServer(t)
	for name, args := range map[string][]string{
		"runs": {"runs"}, "runs-failed": {"ls", "--status", "FAILED", "--app", "default"}, "runs-limit": {"runs", "--limit", "2"},
		"show": {"show", "r.shop"}, "show-oom": {"show", "r.default.b"}, "show-unstarted": {"show", "r.default.c"}, "show-running": {"show", "r.default.d"},
		"nodes": {"node", "ls"}, "node": {"node", "show", "n1"}, "node-silent": {"node", "show", "n2"}, "node-away": {"node", "show", "n3"},
		"node-unready": {"node", "show", "n4"},
		"why":          {"why", "r.default.b"}, "events": {"events", "r.default.b"}, "events-follow": {"events", "-f", "r.default.b"}, "images": {"image", "ls"},
	} {
		for _, format := range []string{"table", "json", "yaml"} {
			t.Run(name+" "+format, func(t *testing.T) {
				got := i.run(append(args, "-o", format)...)
				if got.code != 0 || got.stderr != "" {
					t.Fatalf("%+v", got)
				}
				if strings.Contains(got.stdout, "hunter2") {
					t.Error("a value of the environment is shown")
				}
				golden(t, name+"."+format, got.stdout)
			})
		}
	}
}

func TestRunsListsIDsOverManyPages(t *testing.T) {
	s := startFake(t, nil)
	for n := range 1203 {
		s.Add(&errandv1.Run{Id: fmt.Sprintf("r.default.%04d", n), Status: errandv1.Status_STATUS_RUNNING, Labels: map[string]string{"odd": fmt.Sprint(n % 2)}})
	}
	i := newInvocation(t, s.URL())
	for args, want := range map[string]int{"": 50, "--limit=0": 1203, "--limit=700": 700, "--limit=0 --label=odd=1": 601} {
		got := i.run(append([]string{"runs", "-q"}, strings.Fields(args)...)...)
		if lines := strings.Count(got.stdout, "\n"); lines != want || got.code != 0 {
			t.Errorf("%q: %d ids, want %d", args, lines, want)
		}
		if !strings.HasPrefix(got.stdout, "r.default.1202\nr.default.120") && !strings.Contains(args, "label") {
			t.Errorf("%q: not the newest first: %.40q", args, got.stdout)
		}
	}
}

func TestRunsSinceAreThoseThatGoOnOrEndedSinceAndNoMorePagesAreRead(t *testing.T) {
	pages := 0
	s := startFake(t, func(s *fakeapi.Server) {
		s.PageMax = 2
		s.Cut = func(procedure string) int {
			if procedure == errandv1connect.RunServiceListProcedure {
				pages++
			}
			return -1
		}
	})
	for age := 20; age > 0; age-- { // the last one that ended is listed first
		s.Add(&errandv1.Run{Id: fmt.Sprintf("r.a.ended%02d", age), Status: errandv1.Status_STATUS_FAILED, CreatedAt: before(100 * time.Hour), EndedAt: before(time.Duration(age) * time.Hour)})
	}
	s.Add(&errandv1.Run{Id: "r.a.going", Status: errandv1.Status_STATUS_RUNNING, CreatedAt: before(100 * time.Hour)})
	i := newInvocation(t, s.URL())
	i.now = goldenNow
	for args, want := range map[string]string{
		"--since 2h30m":                "r.a.going\nr.a.ended01\nr.a.ended02\n",
		"--since 2026-03-01T10:30:00Z": "r.a.going\nr.a.ended01\n",
		"--since 1m --status FAILED":   "",
		"--since 4h --limit 2":         "r.a.going\nr.a.ended01\n",
	} {
		pages = 0
		i.run(append([]string{"runs", "-q"}, strings.Fields(args)...)...).want(t, 0, want, "")
		if pages > 2 {
			t.Errorf("%s: %d pages were read", args, pages)
		}
	}
	i.run("runs", "--since", "yesterday").wantError(t, ExitUsage, "--since", "10m")
	i.run("runs", "--since", "1h", "--watch").wantError(t, ExitUsage, "--since and --watch")
}

func TestEmptyListsAreArrays(t *testing.T) {
	s := startFake(t, nil)
	i := newInvocation(t, s.URL())
	for _, args := range [][]string{{"runs"}, {"node", "ls"}, {"image", "ls"}} {
		i.run(append(args, "-o", "json")...).want(t, 0, "[]\n", "")
	}
}

func TestWaitExitCode(t *testing.T) {
	s := startFake(t, nil)
	code := int32(17)
	s.Add(&errandv1.Run{Id: "r.a.good", Status: errandv1.Status_STATUS_SUCCEEDED})
	s.Add(&errandv1.Run{Id: "r.a.failed", Status: errandv1.Status_STATUS_FAILED, ExitCode: &code})
	s.Add(&errandv1.Run{Id: "r.a.canceled", Status: errandv1.Status_STATUS_CANCELED})
	s.Add(&errandv1.Run{Id: "r.a.going", Status: errandv1.Status_STATUS_RUNNING})
	i := newInvocation(t, s.URL())
	for args, want := range map[string]int{
		"r.a.good":                            0,
		"r.a.good r.a.good":                   0,
		"r.a.good r.a.failed":                 17,
		"r.a.failed r.a.canceled":             17,
		"r.a.canceled r.a.failed":             130,
		"--timeout 20ms r.a.going":            124,
		"--timeout 0s r.a.going":              124,
		"--timeout 20ms r.a.failed r.a.going": 124,
		"--timeout 20ms r.a.good":             0,
		"r.a.good r.a.nope":                   125,
	} {
		if got := i.run(append([]string{"wait"}, strings.Fields(args)...)...); got.code != want {
			t.Errorf("wait %s: exit code %d, want %d (%s)", args, got.code, want, got.stderr)
		}
	}
	if s.Runs()[3].Run().GetStopping() != 0 {
		t.Error("a wait that timed out stopped its run")
	}
}

func TestWaitSurvivesARestartOfTheAPI(t *testing.T) {
	s := startFake(t, nil)
	live := s.Add(&errandv1.Run{Id: "r.a.x", Status: errandv1.Status_STATUS_RUNNING})
	done := make(chan result, 1)
	go func() { done <- newInvocation(t, s.URL()).run("wait", "r.a.x") }()
	if err := s.Await(t.Context(), func() bool { return s.Calls(errandv1connect.RunServiceWaitProcedure) > 0 }); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	live.Exit(17)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	if got := <-done; got.code != 17 {
		t.Errorf("%+v", got)
	}
}

func TestWaitKeepsItsTimeoutWhileTheNodeIsAway(t *testing.T) {
	s := startFake(t, nil)
	s.Add(&errandv1.Run{Id: "r.a.x", Status: errandv1.Status_STATUS_RUNNING})
	done := make(chan result, 1)
	i := newInvocation(t, s.URL())
	i.patience.Again = time.Hour
	go func() { done <- i.run("wait", "--timeout", "300ms", "r.a.x") }()
	if err := s.Await(t.Context(), func() bool { return s.Calls(errandv1connect.RunServiceWaitProcedure) > 0 }); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	if got := <-done; got.code != ExitTimedOut || !strings.Contains(got.stderr, s.URL()+" does not answer any more: whether run r.a.x has ended is not known") {
		t.Errorf("%+v", got)
	}
}

func TestWaitKeepsItsTimeoutWhenTheNodeIsFrozen(t *testing.T) {
	// Its kernel takes the connection, and that is all.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	got := newInvocation(t, "http://"+listener.Addr().String()).run("wait", "--timeout", "300ms", "r.a.x")
	got.wantError(t, ExitTimedOut, "the timeout passed, and http://"+listener.Addr().String()+" did not answer")
}

func TestRunSaysThatItMayHaveBeenCreatedAfterAnAnswerThatWasLost(t *testing.T) {
	s := startFake(t, func(s *fakeapi.Server) { s.LoseAnswers = 1 << 20 })
	i := newInvocation(t, s.URL())
	i.patience.Again = 200 * time.Millisecond
	i.run("run", "busybox").wantError(t, ExitErrand, "Whether the run was created is not known: 'errand runs' shows it if it was.")
	i.run("run", "-d", "busybox").wantError(t, ExitErrand, "Whether the run was created is not known")
	s.Stop()
	if got := i.run("run", "busybox"); strings.Contains(got.stderr, "not known") {
		t.Errorf("nothing was sent: %q", got.stderr)
	}
}

func TestCancelGoesOnAfterARunThatHasEnded(t *testing.T) {
	s := startFake(t, nil)
	s.Add(&errandv1.Run{Id: "r.a.ended", Status: errandv1.Status_STATUS_SUCCEEDED})
	s.Add(&errandv1.Run{Id: "r.a.going", Status: errandv1.Status_STATUS_RUNNING})
	got := newInvocation(t, s.URL()).run("cancel", "r.a.ended", "r.a.going")
	got.want(t, 125, "r.a.going\n", "errand: run r.a.ended has ended already\n1 of 2 runs were canceled.\n")
	if s.Runs()[1].Run().GetStopping() != errandv1.Reason_REASON_CANCELED {
		t.Error("the second run was not canceled")
	}
}

func TestImageImportSendsTheArchiveInPieces(t *testing.T) {
	s := startFake(t, nil)
	archive := strings.Repeat("0123456789", 300_000)
	i := newInvocation(t, s.URL())
	got := i.run("image", "import", "--name", "mine:1", writeFile(t, "x.tar", archive))
	if got.code != 0 || !strings.Contains(got.stdout, "mine:1") {
		t.Errorf("%+v", got)
	}
	i.stdin = archive
	if got := i.run("image", "import", "-"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	for n, sent := range s.Imports() {
		if string(sent) != archive {
			t.Errorf("import %d: %d bytes, want %d", n, len(sent), len(archive))
		}
	}
	i.run("image", "import", writeFile(t, "empty.tar", "")).wantError(t, ExitUsage, "archive is empty")
}

func TestColourAndWidthOnlyForTerminals(t *testing.T) {
	var text strings.Builder
	row := []string{"r.default.x", "FAILED (OOM_KILLED)", "a long command that does not fit"}
	if err := writeTable(&text, style{colour: true, width: 50}, []string{"ID", "STATUS", "COMMAND"}, [][]string{row}); err != nil {
		t.Fatal(err)
	}
	want := "ID            STATUS                COMMAND\nr.default.x   \x1b[31mFAILED\x1b[0m (OOM_KILLED)   a long comman…\n"
	if text.String() != want {
		t.Errorf("got  %q\nwant %q", text.String(), want)
	}
}

func TestARunRanUntilItsCommandEndedHoweverLateThatWasRecorded(t *testing.T) {
	s := startFake(t, nil)
	run := goldenRuns()[0]
	run.EndedAt = before(time.Hour) // its node was away
	s.Add(run)
	i := newInvocation(t, s.URL())
	i.now = goldenNow
	for _, command := range []string{"runs", "show r.shop"} {
		if got := i.run(strings.Fields(command)...); !strings.Contains(got.stdout, " 1.5s") || strings.Contains(got.stdout, " 1h ") || strings.Contains(got.stdout, "119m") {
			t.Errorf("%s: %s", command, got.stdout)
		}
	}
}
