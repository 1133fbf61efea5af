// Package guesttest builds sandbox-init for tests.
package guesttest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Env names the variable that holds the path of a sandbox-init to use as it is, for
// tests that run themselves again where nothing can be built.
const Env = "ERRAND_TEST_SANDBOX_INIT"

// Build returns the path of a sandbox-init that is built from the sources as they
// are. It is built once per machine and state of the sources, and must not be
// changed. Tests that may run at the same time, in other processes too, may call it.
func Build(t testing.TB) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatalf("build sandbox-init: %v", err)
	}
	return path
}

var build = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(Env); path != "" {
		return path, nil
	}
	_, file, _, _ := runtime.Caller(0)
	root := filepath.Join(filepath.Dir(file), "..", "..", "..", "..")
	name, err := fingerprint(root)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("errand-guesttest-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "sandbox-init-"+name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	temp := fmt.Sprintf("%s.%d", path, os.Getpid())
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", temp, "./cmd/sandbox-init")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, os.Rename(temp, path)
})

// fingerprint returns the hash of the sources of the binary and its version of Go.
func fingerprint(root string) (string, error) {
	cmd := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}\n{{end}}{{end}}", "./cmd/sandbox-init")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, stderr.Bytes())
	}
	files := strings.Fields(string(out))
	slices.Sort(files)
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version())
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, file, len(content))
		h.Write(content)
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// NeedRoot skips a test that only root can run, and fails it in CI, where a skip
// would hide that it was never run.
func NeedRoot(t testing.TB, why string) {
	t.Helper()
	switch {
	case os.Geteuid() == 0:
	case os.Getenv("CI") == "true":
		t.Fatal(why)
	default:
		t.Skip(why)
	}
}

// AwaitSyscall waits until a thread of a process, which may be traced, stands in a system
// call.
func AwaitSyscall(t testing.TB, pid int, number uintptr) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		files, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", "syscall"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			content, _ := os.ReadFile(file) // it may just have ended
			if word, _, _ := strings.Cut(string(content), " "); word == strconv.FormatUint(uint64(number), 10) {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("no thread of process %d stands in system call %d", pid, number)
		}
	}
}
