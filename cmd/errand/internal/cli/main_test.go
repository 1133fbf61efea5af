package cli

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/api/fakeapi"
)

// asErrand makes the test binary be errand: signals need a process.
const asErrand = "ERRAND_TEST_AS_ERRAND"

func TestMain(m *testing.M) {
	if os.Getenv(asErrand) != "" {
		os.Exit(Execute(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ()))
	}
	goleak.VerifyTestMain(m)
}

var testPatience = client.Patience{
	First: 200 * time.Millisecond, Again: 20 * time.Second,
	PauseMin: time.Millisecond, PauseMax: 20 * time.Millisecond,
}

// result is what one command line did.
type result struct {
	code           int
	stdout, stderr string
}

// invocation is a command line in this process.
type invocation struct {
	t        *testing.T
	environ  []string
	stdin    string
	now      time.Time
	patience client.Patience
	// holdPause is above 0 for somebody at a terminal.
	holdPause time.Duration
}

func newInvocation(t *testing.T, address string) *invocation {
	return &invocation{
		t: t, patience: testPatience,
		environ: []string{"ERRAND_ADDRESS=" + address, "ERRAND_DATA=" + t.TempDir()},
	}
}

func (i *invocation) run(args ...string) result {
	i.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	a := newApp(strings.NewReader(i.stdin), &stdout, &stderr, i.environ)
	a.patience, a.quiet, a.holdPause = i.patience, time.Minute, i.holdPause
	if !i.now.IsZero() {
		a.now = func() time.Time { return i.now }
	}
	code := a.execute(ctx, args)
	return result{code: code, stdout: stdout.String(), stderr: stderr.String()}
}

func startFake(t *testing.T, set func(*fakeapi.Server)) *fakeapi.Server {
	t.Helper()
	s := fakeapi.New()
	if set != nil {
		set(s)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func (r result) want(t *testing.T, code int, stdout, stderr string) {
	t.Helper()
	if r.code != code || r.stdout != stdout || r.stderr != stderr {
		t.Errorf("got  %d, stdout %q, stderr %q\nwant %d, stdout %q, stderr %q", r.code, r.stdout, r.stderr, code, stdout, stderr)
	}
}

func (r result) wantError(t *testing.T, code int, parts ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d (stderr %q)", r.code, code, r.stderr)
	}
	if r.stdout != "" {
		t.Errorf("stdout %q, want nothing", r.stdout)
	}
	for _, part := range parts {
		if !strings.Contains(r.stderr, part) {
			t.Errorf("stderr %q does not have %q", r.stderr, part)
		}
	}
}
