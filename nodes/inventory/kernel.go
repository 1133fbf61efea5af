package inventory

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/cgroup"
	"github.com/errand-run/errand/nodes/sandbox/guest/pid"
)

// processes finds the supervisors, shims, loggers, inits and commands, and the
// namespaces that they keep. Of a command line nothing is told but the program.
func (n Node) processes() ([]sandbox.Thing, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var uptime unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &uptime); err != nil {
		return nil, err
	}
	now, sinceBoot := time.Now(), time.Duration(uptime.Nano())
	var found []sandbox.Thing
	for _, entry := range entries {
		number, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		of, ok := n.processOf(number)
		if !ok {
			continue
		}
		if ref, err := pid.Of(number); err == nil {
			of.Since = started(ref.Start, sinceBoot, now)
		}
		found = append(found, of)
		for _, kind := range []string{"pid", "net"} {
			own, err := os.Readlink(filepath.Join("/proc", entry.Name(), "ns", kind))
			hosts, _ := os.Readlink(filepath.Join("/proc/1/ns", kind))
			if mine, _ := os.Readlink(filepath.Join("/proc/self/ns", kind)); err == nil && own != hosts && own != mine {
				found = append(found, sandbox.Thing{Kind: sandbox.KindNamespace, Name: own, Sandbox: of.Sandbox, Since: of.Since})
			}
		}
	}
	return found, nil
}

// processOf tells whether a process is one of a sandbox's.
func (n Node) processOf(number int) (sandbox.Thing, bool) {
	dir := filepath.Join("/proc", strconv.Itoa(number))
	groups, err1 := os.ReadFile(filepath.Join(dir, "cgroup"))
	line, err2 := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err1 != nil || err2 != nil || len(line) == 0 {
		return sandbox.Thing{}, false // it has ended
	}
	program, rest, _ := strings.Cut(string(line), "\x00")
	program = filepath.Base(program)
	of := sandbox.Thing{Kind: sandbox.KindProcess, Name: strconv.Itoa(number) + " " + program}
	parent := "/" + cgroup.ParentName(n.UUID) + "/"
	if _, below, inside := strings.Cut(string(groups), parent); inside {
		below, _, _ = strings.Cut(below, "\n")
		of.Sandbox, _, _ = strings.Cut(below, "/")
		return of, true
	}
	// Shims and supervisors are outside of the cgroups, and name the data directory.
	if !strings.HasPrefix(program, "sandbox-init") && !strings.HasPrefix(program, "containerd-shim") {
		return of, false
	}
	if !strings.Contains(string(line), n.Data+"/") {
		return of, false
	}
	of.Sandbox = sandbox.IDIn(rest)
	return of, true
}

// mounts finds those of sandboxes and of the unpacking of images. Others may have reason
// to mount something below a data directory.
func (n Node) mounts() ([]sandbox.Thing, error) {
	content, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []sandbox.Thing
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) < 5 || !strings.Contains(line, n.Data+"/") {
			continue
		}
		at := fields[4]
		id := sandbox.IDIn(at)
		if id == "" && !strings.Contains(line, " - overlay ") && !strings.Contains(at, "/tmpmounts/") {
			continue
		}
		thing := sandbox.Thing{Kind: sandbox.KindMount, Name: at, Sandbox: id}
		if info, err := os.Lstat(filepath.Dir(at)); err == nil {
			thing.Since = info.ModTime()
		}
		found = append(found, thing)
	}
	return found, nil
}
