package daemon_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/sandbox/guest/guesttest"
	"github.com/errand-run/errand/simulation/daemon"
)

func TestBadInputIsRefusedWithItsNameAndTheNodeLivesOn(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	huge := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(huge, []byte("BIG="+strings.Repeat("secretvalue", 1<<20)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name  string
		args  []string
		code  int
		names string
	}{
		{name: "negative timeout", args: []string{"run", "--driver", "process", "--timeout", "-5s", "--", "true"}, code: 2, names: "timeout"},
		{name: "unknown flag", args: []string{"run", "--no-such-flag", "--", "true"}, code: 2, names: "no-such-flag"},
		{name: "environment of 11 MB", args: []string{"run", "--driver", "process", "--env-file", huge, "--", "true"}, code: 2, names: "env"},
		{name: "label with a space", args: []string{"run", "--driver", "process", "--label", "a b=c", "--", "true"}, code: 2, names: "label"},
		{name: "app in capitals", args: []string{"run", "--driver", "process", "--app", "Shop", "--", "true"}, code: 2, names: "app"},
		{name: "unknown driver", args: []string{"run", "--driver", "vm", "--", "true"}, code: 2, names: "driver"},
		{name: "unknown run", args: []string{"show", "r.default.nosuchrun"}, code: 125, names: "r.default.nosuchrun"},
		{name: "no command", args: []string{"run", "--driver", "process"}, code: 2, names: "command"},
		{name: "reserved variable", args: []string{"run", "--driver", "process", "--env", "ERRAND_RUN_ID=x", "--", "true"}, code: 2, names: "ERRAND_"},
		{name: "relative working directory", args: []string{"run", "--driver", "process", "--workdir", "tmp", "--", "true"}, code: 2, names: "workdir"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := n.errand(t, test.args...)
			if r.code != test.code || r.stdout != "" || !strings.Contains(r.stderr, test.names) {
				t.Errorf("code %d, stdout %q, stderr %q; want %d and the word %q", r.code, r.stdout, r.stderr, test.code, test.names)
			}
			if strings.Contains(r.stderr, "secretvalue") || strings.Contains(n.log.String(), "secretvalue") {
				t.Error("a value of the environment is shown")
			}
		})
	}
	if runs := n.errand(t, "runs", "-q").stdout; runs != "" {
		t.Errorf("refused requests left runs: %s", runs)
	}
	n.errand(t, "run", "--driver", "process", "--", "true").want(t, 0, "", "")
}

func TestDataDirectoryOfAnotherDaemonIsRefused(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	r := runNode(t, "--dev", "--drivers", "process", "--data", n.data, "--listen", "127.0.0.1:0")
	if r.code == 0 || !strings.Contains(r.stderr, n.data) || !strings.Contains(r.stderr, "another") {
		t.Fatalf("code %d, stderr %q", r.code, r.stderr)
	}
	n.errand(t, "run", "--driver", "process", "--", "true").want(t, 0, "", "")
}

func TestDataDirectoryOfAnotherNodeIsRefused(t *testing.T) {
	t.Parallel()
	n := startNode(t, "--name", "first")
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	r := runNode(t, "--dev", "--drivers", "process", "--data", n.data, "--listen", "127.0.0.1:0", "--name", "second")
	n.start(t)
	if r.code == 0 || !strings.Contains(r.stderr, "first") || !strings.Contains(r.stderr, "second") {
		t.Fatalf("code %d, stderr %q; want both names", r.code, r.stderr)
	}
}

func TestDaemonRefusesBadSettings(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "node.toml")
	if err := os.WriteFile(file, []byte("listne = \"127.0.0.1:1\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := startNode(t)
	for _, test := range []struct {
		name  string
		args  []string
		names string
	}{
		{name: "address that is not loopback", args: []string{"--listen", "0.0.0.0:7400"}, names: "loopback"},
		{name: "address in use", args: []string{"--dev", "--drivers", "process", "--listen", strings.TrimPrefix(n.Address, "http://")}, names: "address already in use"},
		{name: "unknown key in the file", args: []string{"--config", file}, names: "listne"},
		{name: "unknown driver", args: []string{"--drivers", "vm"}, names: "vm"},
		{name: "shards", args: []string{"--shards", "0"}, names: "shards"},
		{name: "argument", args: []string{"start"}, names: "start"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := runNode(t, append([]string{"--data", t.TempDir()}, test.args...)...)
			if r.code == 0 || !strings.Contains(r.stderr, test.names) {
				t.Errorf("code %d, stderr %q; want the word %q", r.code, r.stderr, test.names)
			}
		})
	}
}

func TestTokenIsNeededOutsideDev(t *testing.T) {
	t.Parallel()
	n := &node{data: t.TempDir(), flags: []string{"--drivers", "process"}}
	n.start(t)
	t.Cleanup(func() {
		if err := n.Stop(); err != nil {
			t.Error(err)
		}
	})
	token := filepath.Join(n.data, "api.token")
	info, err := os.Stat(token)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%s: %v, %v; want mode 0600", token, info, err)
	}
	for _, test := range []struct {
		name        string
		environment []string
		code        int
	}{
		{name: "none", environment: []string{"ERRAND_DATA=" + t.TempDir()}, code: 125},
		{name: "wrong", environment: []string{"ERRAND_TOKEN=wrong"}, code: 125},
		{name: "from the data directory", environment: []string{"ERRAND_DATA=" + n.data}, code: 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			if r := n.errandWith(t, test.environment, "runs"); r.code != test.code {
				t.Errorf("code %d, stderr %q; want %d", r.code, r.stderr, test.code)
			}
		})
	}
}

// A disk that fills up first makes the node refuse what it could not make durable,
// in words; when it is full, what runs goes on; when there is room again, all is
// well.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	guesttest.NeedRoot(t, "needs root for a file system of its own")
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=512m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	n := &node{data: filepath.Join(disk, "data"), flags: []string{"--dev", "--drivers", "process"}}
	n.start(t)
	t.Cleanup(func() {
		if err := n.Stop(); err != nil {
			t.Errorf("%v\n%s", err, n.log)
		}
	})
	going := n.submit(t, "--", "sh", "-c", "sleep 6; exit 6")
	n.awaitRunning(t.Context(), t, going)
	ballast := filepath.Join(disk, "ballast")
	fill(t, ballast, 32<<20)
	var refused result
	for deadline := time.Now().Add(2 * time.Minute); !strings.Contains(refused.stderr, "space"); {
		if time.Now().After(deadline) {
			t.Fatalf("no refusal on a disk that is almost full: code %d, stderr %q", refused.code, refused.stderr)
		}
		refused = n.errand(t, "run", "-d", "--driver", "process", "--", "true")
	}
	if refused.code != 125 || refused.stdout != "" {
		t.Errorf("refused with code %d and stdout %q", refused.code, refused.stdout)
	}
	fill(t, filepath.Join(disk, "more"), 0)
	if r := n.errand(t, "runs"); r.code != 0 || !strings.Contains(r.stdout, going) {
		t.Errorf("runs on a full disk: code %d, stderr %q", r.code, r.stderr)
	}
	for _, path := range []string{ballast, filepath.Join(disk, "more")} {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if r := n.errand(t, "wait", "--timeout", "60s", going); r.code != 6 {
		t.Errorf("the run that was going gave %d, stderr %q; want 6\n%s", r.code, r.stderr, n.log)
	}
	n.errand(t, "run", "--driver", "process", "--", "true").want(t, 0, "", "")
}

// fill writes until the file system has only so many bytes left.
func fill(t *testing.T, path string, left int64) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 1<<16)
	for err == nil {
		var free unix.Statfs_t
		if err := unix.Fstatfs(int(file.Fd()), &free); err != nil {
			t.Fatal(err)
		}
		if left > 0 && int64(free.Bavail)*free.Bsize <= left {
			break
		}
		_, err = file.Write(block)
	}
	if err := file.Close(); err != nil {
		t.Log(err)
	}
}

// runNode runs errand-node with settings under which it must not serve.
func runNode(t *testing.T, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	args = append([]string{"--sandbox-init", filepath.Join(binaries, "sandbox-init")}, args...)
	command := exec.CommandContext(ctx, filepath.Join(binaries, "errand-node"), args...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	if ctx.Err() != nil {
		t.Fatalf("errand-node %v serves: %v\n%s", args, err, &stdout)
	}
	return result{stdout: stdout.String(), stderr: stderr.String(), code: command.ProcessState.ExitCode()}
}

func TestReadyDaemonAnswersItsHealth(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		if err := daemon.Probe(context.Background(), n.Address+path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}
