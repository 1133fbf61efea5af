package cli

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api/fakeapi"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/messages/errand/v1/errandv1connect"
)

var logStart = time.Date(2026, 3, 1, 11, 0, 0, 5000, time.UTC)

// addLogged adds a run with a log of both streams: lines 0 to 9 a minute apart,
// each odd one on stderr, each in two chunks, and a last word without a line end.
func addLogged(s *fakeapi.Server, finished bool) *fakeapi.Live {
	live := s.Add(&errandv1.Run{Id: "r.default.logged", Status: errandv1.Status_STATUS_RUNNING})
	live.Start()
	for n := range 10 {
		stream := toStdout
		if n%2 == 1 {
			stream = toStderr
		}
		at := logStart.Add(time.Duration(n) * time.Minute)
		live.WriteAt(stream, at, "line ")
		live.WriteAt(stream, at, fmt.Sprintf("%d\n", n))
	}
	live.WriteAt(toStdout, logStart.Add(10*time.Minute), "end")
	if finished {
		live.Exit(1)
	}
	return live
}

func TestLogsSelections(t *testing.T) {
	s := startFake(t, nil)
	addLogged(s, true)
	i := newInvocation(t, s.URL())
	i.now = logStart.Add(12 * time.Minute)
	even, odd := "line 0\nline 2\nline 4\nline 6\nline 8\nend", "line 1\nline 3\nline 5\nline 7\nline 9\n"
	for args, want := range map[string][2]string{
		"":                                      {even, odd},
		"-f":                                    {even, odd},
		"--attempt 1":                           {even, odd},
		"--stream stdout":                       {even, ""},
		"--stream stderr":                       {"", odd},
		"--tail 2":                              {"end", "line 9\n"},
		"-f --tail 2":                           {"end", "line 9\n"},
		"--tail 2 --stream stderr":              {"", "line 7\nline 9\n"},
		"-f --tail 2 --stream stdout":           {"line 8\nend", ""},
		"--tail 99 --stream stdout":             {even, ""},
		"--since 4m":                            {"line 8\nend", "line 9\n"},
		"--since 2026-03-01T11:09:00Z":          {"end", "line 9\n"},
		"-t --tail 1":                           {"2026-03-01T11:10:00.000005000Z end", ""},
		"--timestamps --since 3m":               {"2026-03-01T11:10:00.000005000Z end", "2026-03-01T11:09:00.000005000Z line 9\n"},
		"--timestamps --tail 1 --stream stderr": {"", "2026-03-01T11:09:00.000005000Z line 9\n"},
	} {
		t.Run(args, func(t *testing.T) {
			got := i.run(append([]string{"logs", "r.default.l"}, strings.Fields(args)...)...)
			got.want(t, 0, want[0], want[1])
		})
	}
}

// A chunk is what was read at once: where lines matter, errand parts them.
func TestLogsPartsChunksOfManyLines(t *testing.T) {
	s := startFake(t, nil)
	live := s.Add(&errandv1.Run{Id: "r.default.many", Status: errandv1.Status_STATUS_RUNNING})
	live.Start()
	for n, piece := range []string{"a\nb\nc", "c\nd\n", "\ne\n", "f", "f", "f\ng\nh"} {
		live.WriteAt(toStdout, logStart.Add(time.Duration(n)*time.Minute), piece)
		live.WriteAt(toStderr, logStart.Add(time.Duration(n)*time.Minute), "noise\nnoise")
	}
	live.Exit(0)
	all := "a\nb\ncc\nd\n\ne\nfff\ng\nh"
	lines := strings.SplitAfter(all, "\n")
	i := newInvocation(t, s.URL())
	for count := 1; count <= len(lines)+1; count++ {
		want := strings.Join(lines[max(0, len(lines)-count):], "")
		i.run("logs", "--stream", "stdout", "--tail", fmt.Sprint(count), "r.default.many").want(t, 0, want, "")
	}
	stamp := func(minute int) string {
		return logStart.Add(time.Duration(minute)*time.Minute).Format(stampForm) + " "
	}
	want := stamp(0) + "a\n" + stamp(0) + "b\n" + stamp(0) + "cc\n" + stamp(1) + "d\n" + stamp(2) + "\n" + stamp(2) + "e\n" +
		stamp(3) + "fff\n" + stamp(5) + "g\n" + stamp(5) + "h"
	i.run("logs", "-t", "--stream", "stdout", "r.default.many").want(t, 0, want, "")
	i.run("logs", "-t", "--stream", "stdout", "--tail", "2", "r.default.many").want(t, 0, stamp(5)+"g\n"+stamp(5)+"h", "")
}

func TestLogsFollowsAStreamFromItsTailOn(t *testing.T) {
	s := startFake(t, nil)
	live := addLogged(s, false)
	done := make(chan result, 1)
	go func() {
		done <- newInvocation(t, s.URL()).run("logs", "-f", "--tail", "1", "--stream", "stderr", "r.default.logged")
	}()
	// The second call is the one that follows.
	if err := s.Await(t.Context(), func() bool { return s.Calls(errandv1connect.RunServiceLogsProcedure) > 1 }); err != nil {
		t.Fatal(err)
	}
	live.Write(toStdout, "more\n")
	live.Write(toStderr, "more\n")
	live.Exit(0)
	(<-done).want(t, 0, "", "line 9\nmore\n")
}

func TestLogsFollowSurvivesCutConnectionsAndRestarts(t *testing.T) {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(3, 5))
	s := startFake(t, func(s *fakeapi.Server) {
		s.Cut = func(procedure string) int {
			mu.Lock()
			defer mu.Unlock()
			if procedure == errandv1connect.RunServiceLogsProcedure {
				return random.IntN(400)
			}
			return -1
		}
	})
	live := addLogged(s, false)
	done := make(chan result, 1)
	go func() { done <- newInvocation(t, s.URL()).run("logs", "-f", "--tail", "3", "r.default.logged") }()
	if err := s.Await(t.Context(), func() bool { return s.Calls(errandv1connect.RunServiceLogsProcedure) > 0 }); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	live.Write(toStdout, "!\n")
	live.Exit(0)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	got := <-done
	// Which lines are the last three depends on when the first call came through.
	if got.code != 0 || !strings.HasSuffix(got.stdout, "end!\n") || strings.Count(got.stdout, "end!\n") != 1 || strings.Count(got.stderr, "line 9\n") != 1 {
		t.Errorf("%+v", got)
	}
}

func TestLogsOfAnAttemptOrRunThatDoesNotExist(t *testing.T) {
	s := startFake(t, nil)
	addLogged(s, false)
	i := newInvocation(t, s.URL())
	i.run("logs", "--attempt", "7", "r.default.logged").wantError(t, ExitErrand, "no attempt 7")
	i.run("logs", "-f", "--attempt", "7", "r.default.logged").wantError(t, ExitErrand, "no attempt 7")
	i.run("logs", "r.nope").wantError(t, ExitErrand, "r.nope")
}

func TestLogsThatAreLostAreAnErrorOfErrandLogsAndANoteOfErrandRun(t *testing.T) {
	s := startFake(t, func(s *fakeapi.Server) {
		s.LogError = func() error {
			return fakeapi.Fail(connect.CodeDataLoss, "LOG_LOST", "nothing is left of the log: its files are not on node n1 any more")
		}
		s.Script = func(l *fakeapi.Live) { l.Start(); l.Exit(3) }
	})
	addLogged(s, true)
	i := newInvocation(t, s.URL())
	i.run("logs", "r.default.logged").wantError(t, ExitErrand, "not on node n1 any more")
	i.run("logs", "-f", "r.default.logged").wantError(t, ExitErrand, "not on node n1 any more")
	i.run("run", "busybox").wantError(t, 3, "could not be read to its end: nothing is left of the log")
	if calls := s.Calls(errandv1connect.RunServiceLogsProcedure); calls != 3 {
		t.Errorf("%d calls", calls)
	}
}

func TestLogsFollowOfARunWithoutAnAttemptEndsWithTheRun(t *testing.T) {
	s := startFake(t, nil)
	live := s.Add(&errandv1.Run{Id: "r.default.never", Status: errandv1.Status_STATUS_PENDING})
	done := make(chan result, 1)
	go func() { done <- newInvocation(t, s.URL()).run("logs", "-f", "r.default.never") }()
	if err := s.Await(t.Context(), func() bool { return s.Calls(errandv1connect.RunServiceLogsProcedure) > 0 }); err != nil {
		t.Fatal(err)
	}
	live.End(errandv1.Status_STATUS_TIMED_OUT, errandv1.Reason_REASON_START_DEADLINE, "", nil)
	(<-done).want(t, 0, "", "")
}

func TestLogsGivesUpOnANodeThatStaysAway(t *testing.T) {
	s := startFake(t, nil)
	addLogged(s, false)
	i := newInvocation(t, s.URL())
	i.patience.Again = 100 * time.Millisecond
	done := make(chan result, 1)
	go func() { done <- i.run("logs", "-f", "r.default.logged") }()
	if err := s.Await(t.Context(), func() bool { return s.Calls(errandv1connect.RunServiceLogsProcedure) > 0 }); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	if got := <-done; got.code != ExitErrand || !strings.Contains(got.stderr, s.URL()) {
		t.Errorf("%+v", got)
	}
}
