package daemon_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// kind is a driver under test, and how runs ask for it.
type kind struct {
	name  string
	start func(*testing.T) *node
	// flags are those of a node of the kind.
	flags []string
	// args come before the command of an errand run.
	args []string
	// spec is the beginning of a spec in JSON.
	spec string
}

var kinds = []kind{
	{"process", func(t *testing.T) *node { return startNode(t) }, []string{"--drivers", "process"}, []string{"--driver", "process"}, `"driver": "process"`},
	{"containerd", startContainerNode, []string{"--drivers", "containerd", "--containerd", "private"}, []string{"busybox"}, `"image": "busybox"`},
}

// detach submits a run of a kind and returns its id; flags come before --.
func (k kind) detach(t *testing.T, n *node, flags []string, command ...string) string {
	t.Helper()
	r := n.errand(t, slices.Concat([]string{"run", "-d"}, flags, k.args, []string{"--"}, command)...)
	if r.code != 0 {
		t.Fatalf("errand run -d: code %d, stderr %s\nnode: %s", r.code, r.stderr, n.log)
	}
	return strings.TrimSpace(r.stdout)
}

// processesOf finds what runs with the environment of a run, whoever started it.
func processesOf(t *testing.T, id string) (pids []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		environment, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(environment, []byte("ERRAND_RUN_ID="+id+"\x00")) {
			continue // it has ended, or is of somebody else
		}
		pids = append(pids, filepath.Base(filepath.Dir(path)))
	}
	return pids
}

// leftOf finds what is alive of a run that has ended. The first process of its sandbox is
// not counted: it tells the end, and has then still to go itself.
func leftOf(t *testing.T, id string) (pids []string) {
	t.Helper()
	for _, pid := range processesOf(t, id) {
		text, err := os.ReadFile("/proc/" + pid + "/status")
		if err == nil && !firstOfNamespace.Match(text) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// firstOfNamespace is in the status of what is process 1 of a namespace other than the
// machine's.
var firstOfNamespace = regexp.MustCompile(`(?m)^NSpid:(\t\d+)+\t1$`)

// cgroupOf returns the processes of a sandbox's cgroup, none when it has none.
func cgroupOf(t *testing.T, id string) (pids []string) {
	t.Helper()
	var lists []string
	for _, pattern := range []string{"/sys/fs/cgroup/errand-*/", "/sys/fs/cgroup/*/errand-*/"} {
		found, err := filepath.Glob(pattern + id + "/cgroup.procs")
		if err != nil {
			t.Fatal(err)
		}
		lists = append(lists, found...)
	}
	for _, path := range lists {
		text, err := os.ReadFile(path)
		if err != nil && !os.IsNotExist(err) && !errors.Is(err, syscall.ENODEV) { // it is removed as we look
			t.Fatal(err)
		}
		pids = append(pids, strings.Fields(string(text))...)
	}
	return pids
}

// awaitProcesses returns when a run has at least so many.
func awaitProcesses(t *testing.T, id string, least int) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); len(processesOf(t, id)) < least; time.Sleep(20 * time.Millisecond) { // the kernel tells nobody
		if time.Now().After(deadline) {
			t.Fatalf("run %s has the processes %v, want %d", id, processesOf(t, id), least)
		}
	}
}

// LIF-01, G4: when a run reads terminal, nothing of it is alive, however it has made
// and hidden its processes, and whatever they do about TERM.
func TestTerminalMeansThatTheWholeTreeIsGone(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			n := k.start(t)
			for _, test := range []struct {
				name   string
				flags  []string
				script string
				least  int // processes before the end
				cancel bool
				status string
				code   int
			}{
				{
					name: "children that ignore TERM", flags: []string{"--stop-grace", "1s"}, least: 3, cancel: true, status: "CANCELED", code: 143,
					script: `(trap "" TERM; sleep 600; :) & sleep 600`,
				},
				{
					name: "all ignore TERM", flags: []string{"--stop-grace", "1s", "--timeout", "10s"}, least: 2, status: "TIMED_OUT", code: 137,
					script: `trap "" TERM; sleep 600; :`,
				},
				{
					name: "a process that has left its family, and the command ends well", status: "SUCCEEDED", code: 0,
					script: `(setsid sleep 600 >/dev/null 2>&1 </dev/null &); exit 0`,
				},
				{
					name: "a fork bomb under a pids limit", flags: []string{"--pids-limit", "40", "--timeout", "2s", "--stop-grace", "1s"}, status: "TIMED_OUT", code: 137,
					script: `trap "" TERM; (bomb() { bomb & bomb & sleep 600; }; bomb) 2>/dev/null & exec sleep 600`,
				},
			} {
				t.Run(test.name, func(t *testing.T) {
					t.Parallel()
					id := k.detach(t, n, test.flags, "sh", "-c", test.script)
					if test.least > 0 {
						awaitProcesses(t, id, test.least)
					}
					if test.cancel {
						n.errand(t, "cancel", id)
					}
					n.errand(t, "wait", id)
					left := leftOf(t, id)
					s := n.show(t, id)
					if len(left) > 0 {
						t.Errorf("alive when the run was %s: %v", s.Status, left)
					}
					if s.Status != test.status || s.ExitCode == nil || *s.ExitCode != test.code {
						t.Errorf("the run is %+v; want %s, %d", s, test.status, test.code)
					}
				})
			}
		})
	}
}

// What the engine tells a command of itself.
func TestCommandsKnowTheirRun(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			n := k.start(t)
			id := n.create(t, fmt.Sprintf(`{"spec": {%s, "command": ["sh", "-c", %q], "retry": {"retries": 1, "backoff": "0.1s"}}}`, k.spec,
				`echo "$ERRAND_RUN_ID $ERRAND_ATTEMPT $ERRAND_FENCING_TOKEN"; env | grep -c ^ERRAND_TICK=; exit 1`))
			n.errand(t, "wait", id)
			var tokens []int64
			for attempt := 1; attempt <= 2; attempt++ {
				var run string
				var number, ticks int
				var token int64
				text := n.errand(t, "logs", id, "--attempt", fmt.Sprint(attempt)).stdout
				if _, err := fmt.Sscan(text, &run, &number, &token, &ticks); err != nil || run != id || number != attempt || ticks != 0 {
					t.Fatalf("attempt %d found %q, %v", attempt, text, err)
				}
				tokens = append(tokens, token)
			}
			if tokens[0] <= 0 || tokens[1] <= tokens[0] {
				t.Errorf("the fencing tokens of two attempts are %d", tokens)
			}
		})
	}
}
