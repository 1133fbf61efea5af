package daemon_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/errand-run/errand/simulation/daemon"
	"github.com/errand-run/errand/simulation/daemon/janitor"
)

// parallelTests is how many tests run in parallel unless the command line says.
const parallelTests = "4"

// busy is how much later than is promised something may be on a machine that has other
// things to do, whose disk is one of them. What the tests tell apart by a time is further
// away.
const busy = 10 * time.Second

// binaries holds what TestMain builds: errand-node with the race detector,
// errand, sandbox-init and simulate as they ship.
var binaries string

func TestMain(m *testing.M) {
	if address := os.Getenv(etcdVariable); address != "" {
		if err := serveEtcd(address, os.Getenv(etcdDirVariable)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (code int, err error) {
	// All that the tests make lies below one directory, so that what a process of tests
	// that was killed has left can be told from what is in use, and is removed by the next.
	home, err := janitor.Open(os.TempDir())
	if home == nil {
		return 1, err
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "what earlier tests have left is not all removed:", err)
	}
	defer func() {
		// The next process of tests tries again.
		if err := home.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "what the tests have left is not all removed:", err)
		}
	}()
	if err := os.Setenv("TMPDIR", home.Dir); err != nil {
		return 1, err
	}
	dir := filepath.Join(home.Dir, "bin")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return 1, err
	}
	binaries = dir
	for _, build := range []struct {
		name, source, cgo string
		flags             []string
	}{
		{name: "sandbox-init", source: "./cmd/sandbox-init", cgo: "0"},
		{name: "errand", source: "./cmd/errand", cgo: "0"},
		{name: "simulate", source: "./cmd/simulate", cgo: "0"},
		{name: "errand-node", source: "./cmd/node", cgo: "1", flags: []string{"-race"}},
	} {
		args := append(append([]string{"build"}, build.flags...), "-o", filepath.Join(dir, build.name), build.source)
		command := exec.Command("go", args...)
		command.Dir = filepath.Join("..", "..")
		command.Env = append(os.Environ(), "CGO_ENABLED="+build.cgo)
		if output, err := command.CombinedOutput(); err != nil {
			return 1, fmt.Errorf("build %s: %w\n%s", build.name, err, output)
		}
	}
	// Tests have nodes of their own and run in parallel, since they wait for most of their
	// time. Those come first, and alone, that keep all processors busy, or measure.
	flag.Parse()
	if at := flag.Lookup("test.parallel"); at.Value.String() == at.DefValue {
		if err := at.Value.Set(parallelTests); err != nil {
			return 1, err
		}
	}
	code = m.Run()
	if code == 0 {
		err = goleak.Find(goleak.IgnoreTopFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"))
	}
	return code, err
}

// node is a daemon under test with its data directory and log.
type node struct {
	*daemon.Daemon
	data  string
	flags []string
	log   *logText
	// listen is its address through all restarts.
	listen string
	// binary is started instead of errand-node as it was built here, unless empty.
	binary string
	// environment is added to that of the tests for it.
	environment []string
}

// logText gathers a daemon's log while tests read it.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String is the log so far.
func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// startNode starts a daemon in --dev on a directory of its own and stops it when
// the test ends.
func startNode(t *testing.T, flags ...string) *node {
	t.Helper()
	return (&node{}).startWith(t, flags...)
}

// startWith starts a node that has its binary and its environment, as startNode does.
func (n *node) startWith(t *testing.T, flags ...string) *node {
	t.Helper()
	if !slices.Contains(flags, "--drivers") {
		flags = append(flags, "--drivers", "process")
	}
	if !slices.Contains(flags, "--runtime-dir") {
		// What a node leaves there for its next start would stay on the machine.
		flags = append(flags, "--runtime-dir", t.TempDir())
	}
	n.data, n.flags = t.TempDir(), append(flags, "--dev")
	n.start(t)
	t.Cleanup(func() {
		if n.Daemon == nil {
			return
		}
		if t.Failed() {
			// What it was about may still run, and would go on without the daemon.
			going := n.errand(t, "runs", "-q", "--limit", "0", "--status", "PENDING,RUNNING")
			for id := range strings.FieldsSeq(going.stdout) {
				n.errand(t, "cancel", "--force", id)
				n.errand(t, "wait", "--timeout", "20s", id)
			}
		}
		if err := n.Stop(); err != nil {
			t.Errorf("stop the node: %v\n%s", err, n.log)
		}
		if strings.Contains(n.log.String(), "DATA RACE") {
			t.Errorf("the daemon reported a data race:\n%s", n.log)
		}
	})
	return n
}

func (n *node) start(t *testing.T) {
	t.Helper()
	n.log = &logText{}
	options := daemon.Options{
		Binary: filepath.Join(binaries, "errand-node"), Data: n.data, Environment: n.environment, Stderr: n.log,
		Flags: append([]string{"--sandbox-init", filepath.Join(binaries, "sandbox-init")}, n.flags...),
	}
	if n.binary != "" {
		options.Binary = n.binary
	}
	if n.listen == "" {
		n.listen = freeAddress(t)
	}
	options.Listen = n.listen
	started, err := daemon.Start(context.Background(), options)
	if err != nil {
		t.Fatalf("start the node: %v\n%s", err, n.log)
	}
	n.Daemon = started
}

// restart kills the daemon as a crash would and starts it on the same address.
func (n *node) restart(t *testing.T) {
	t.Helper()
	n.crash(t)
	n.start(t)
}

func (n *node) crash(t *testing.T) {
	t.Helper()
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
}

// result is what a command line gave.
type result struct {
	stdout, stderr string
	code           int
	took           time.Duration
}

// errand runs the command line against the node.
func (n *node) errand(t *testing.T, args ...string) result {
	t.Helper()
	return n.errandWith(t, nil, args...)
}

func (n *node) errandWith(t *testing.T, environment []string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, filepath.Join(binaries, "errand"), args...)
	command.Env = append(append(os.Environ(), "ERRAND_ADDRESS="+n.Address), environment...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	begin := time.Now()
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("errand %v: %v", args, err)
	}
	if ctx.Err() != nil {
		t.Fatalf("errand %v did not end\nstdout: %s\nstderr: %s\nnode: %s", args, &stdout, &stderr, n.log)
	}
	return result{stdout: stdout.String(), stderr: stderr.String(), code: command.ProcessState.ExitCode(), took: time.Since(begin)}
}

// want fails the test unless the command line gave exactly this.
func (r result) want(t *testing.T, code int, stdout, stderr string) {
	t.Helper()
	if r.code != code || r.stdout != stdout || r.stderr != stderr {
		t.Fatalf("got code %d, stdout %q, stderr %q; want code %d, stdout %q, stderr %q", r.code, r.stdout, r.stderr, code, stdout, stderr)
	}
}
