package cli

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/errand-run/errand/api/fakeapi"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/messages/errand/v1/errandv1connect"
)

// watching is an `errand runs --watch` under way.
type watching struct {
	t      *testing.T
	lines  *bufio.Scanner
	stderr *bytes.Buffer
	end    func() int
}

func startWatching(t *testing.T, s *fakeapi.Server, args ...string) *watching {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	out, in := io.Pipe()
	w := &watching{t: t, lines: bufio.NewScanner(out), stderr: &bytes.Buffer{}}
	a := newApp(strings.NewReader(""), in, w.stderr, newInvocation(t, s.URL()).environ)
	a.patience, a.quiet = testPatience, time.Minute
	code := make(chan int, 1)
	go func() {
		code <- a.execute(ctx, append([]string{"runs", "--watch"}, args...))
		_ = in.Close()
	}()
	w.end = func() int {
		cancel()
		_, _ = io.Copy(io.Discard, out)
		return <-code
	}
	t.Cleanup(func() {
		cancel()
		_ = out.Close()
	})
	return w
}

// want reads as many lines and compares what they say of a run: its id and status.
func (w *watching) want(runs ...string) {
	w.t.Helper()
	for _, want := range runs {
		if !w.lines.Scan() {
			w.t.Fatalf("the output ended before %q", want)
		}
		words := strings.Fields(w.lines.Text())
		if got := strings.Join([]string{words[0], words[min(2, len(words)-1)]}, " "); got != want {
			w.t.Fatalf("line %q, want that of %s", w.lines.Text(), want)
		}
	}
}

func added(s *fakeapi.Server, id string) *fakeapi.Live {
	return s.Add(&errandv1.Run{Id: id, App: "shop", Name: "n", Status: errandv1.Status_STATUS_PENDING, Spec: &errandv1.RunSpec{Command: []string{"true"}}})
}

func TestRunsWatchShowsTheListThenEachChangeOnce(t *testing.T) {
	s := startFake(t, nil)
	first, second := added(s, "r.shop.first"), added(s, "r.shop.second")
	second.Exit(0)
	w := startWatching(t, s)
	w.want("ID STATUS", "r.shop.first PENDING", "r.shop.second SUCCEEDED")
	first.Start()
	w.want("r.shop.first RUNNING")

	// The node restarts, and what happens meanwhile is told afterwards.
	s.Stop()
	third := added(s, "r.shop.third")
	third.Start()
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	w.want("r.shop.third PENDING", "r.shop.third RUNNING")

	// The node does not know any more what happened meanwhile.
	s.Stop()
	first.Exit(1)
	added(s, "r.shop.fourth").Start()
	s.Forget()
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	w.want("r.shop.fourth RUNNING", "r.shop.first FAILED")
	third.Exit(0)
	w.want("r.shop.third SUCCEEDED")
	w.end()
	if notes := w.stderr.String(); strings.Count(notes, "listing the runs that have") != 1 {
		t.Errorf("stderr: %s", notes)
	}
	if lists := s.Calls(errandv1connect.RunServiceListProcedure); lists != 2 {
		t.Errorf("%d lists", lists)
	}
}

func TestRunsWatchFiltersAndFormats(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"ids", []string{"-q"}, []string{"r.shop.a", "r.shop.a", "r.shop.a"}},
		{"status", []string{"-q", "--status", "RUNNING"}, []string{"r.shop.a"}},
		{"json", []string{"-o", "json"}, []string{`{"id":"r.shop.a"`, `{"id":"r.shop.a"`, `{"id":"r.shop.a"`}},
		{"yaml", []string{"-o", "yaml", "--status", "RUNNING"}, []string{"---", "app: shop", "attempts:"}},
		{"none", []string{"--app", "other", "-q"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := startFake(t, nil)
			w := startWatching(t, s, c.args...)
			if err := s.Await(t.Context(), func() bool { return s.Calls(errandv1connect.RunServiceChangesProcedure) > 0 }); err != nil {
				t.Fatal(err)
			}
			run := added(s, "r.shop.a")
			run.Start()
			run.Exit(0)
			for i, want := range c.want {
				if !w.lines.Scan() || !strings.HasPrefix(w.lines.Text(), want) {
					t.Fatalf("line %d is %q, want %q", i, w.lines.Text(), want)
				}
			}
			w.end()
		})
	}
}

func TestRunsSaysWhenItStopsLooking(t *testing.T) {
	s := startFake(t, nil)
	s.Examined = 12_000
	for i := range 3 {
		added(s, fmt.Sprintf("r.shop.%d", i))
	}
	s.PageMax = 1
	i := newInvocation(t, s.URL())
	result := i.run("runs", "-q", "--limit", "10")
	if result.code != 0 || result.stdout != "r.shop.2\nr.shop.1\n" || !strings.Contains(result.stderr, "looked at the newest 24000 runs") {
		t.Errorf("%+v", result)
	}
	if result := i.run("runs", "-q", "--limit", "0"); result.stdout != "r.shop.2\nr.shop.1\nr.shop.0\n" || result.stderr != "" {
		t.Errorf("%+v", result)
	}
}
