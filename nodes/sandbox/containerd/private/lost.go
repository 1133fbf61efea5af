package private

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/sandbox/guest/pid"
)

// Who removes the files of a private containerd, or moves them away, ends neither it nor
// its shims: it goes on with files that have no name any more, and the pid file, by which
// the next daemon would find it, is gone with them. It is told by its command line, which
// names a configuration that only a daemon on the same directory writes, by its view of
// that directory, and by the database that it has open.

// database is the file that a containerd keeps open and locked below its root for as long
// as it runs.
const database = "io.containerd.metadata.v1.bolt/meta.db"

// Lost is a containerd that was started for a directory, and whose files are not those
// that are there now.
type Lost struct {
	PID int
	// Deleted tells that its files are gone; else they were moved to where Root says.
	Deleted bool
	Root    string
	// Shims are how many shims there are at the address that it had: each has a container.
	Shims int

	proc pid.Ref
}

// LostOf returns the containerds that were started for a directory and have lost it, by
// their pids. It touches nothing. One that can not be looked at is none.
func LostOf(dir string) []Lost {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil
	}
	p := places(dir)
	var found []Lost
	for _, number := range startedFor(p) {
		ref, err := pid.Of(number)
		if err != nil {
			continue // it has ended
		}
		if root, at := rootOf(number, p); at == elsewhere {
			found = append(found, Lost{
				PID: number, Deleted: strings.HasSuffix(root, deletedMark), Root: strings.TrimSuffix(root, deletedMark),
				Shims: shimsAt(p.socket), proc: ref,
			})
		}
	}
	return found
}

// EndLost ends the containerds that have lost a directory and returns when they are gone.
// It is an error that one has containers, unless that loss was accepted: their directory
// may only have been moved, and is put back. Shims and commands go on in any case, for who
// finds them by their cgroups.
func EndLost(ctx context.Context, dir string, accepted bool, log *zap.Logger) error {
	lost := LostOf(dir)
	if len(lost) == 0 {
		return nil
	}
	// The shims of one that works on the files that are there have the same address. Such a
	// second one is there because the loss of the first was accepted.
	_, succeeded := find(places(dir))
	for _, l := range lost {
		if !accepted && !succeeded && l.Shims > 0 {
			return fmt.Errorf("the containerd that was started for %s (pid %d) is at work with %d containers, and its files are not there any more: the data directory was emptied, or moved away, while they ran. "+
				"Put it back; if it is lost for good, start once with --accept-loss-of journal: what runs is stopped then", dir, l.PID, l.Shims)
		}
		if !accepted && !l.Deleted {
			continue // it has nothing to do, and its files are elsewhere
		}
		log.Warn("a containerd that was started for this data directory has lost its files, it is ended", zap.Int("pid", l.PID), zap.String("root", l.Root), zap.Int("shims", l.Shims))
		if err := l.end(ctx); err != nil {
			return fmt.Errorf("end the containerd that has lost its files (pid %d): %w", l.PID, err)
		}
	}
	return nil
}

// end kills exactly this process. It has nothing to bring to an end, and on a mere TERM it
// removes the socket at its address, which may be that of its successor.
func (l Lost) end(ctx context.Context) error {
	pidfd, err := l.proc.Open()
	if err != nil {
		return nil //nolint:nilerr // it has ended
	}
	proc := hold(l.PID, pidfd, false)
	defer proc.release()
	if err := proc.signal(unix.SIGKILL); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, StopMax)
	defer cancel()
	return proc.wait(ctx)
}

// where the files of a containerd are.
type where int

const (
	unseen where = iota
	here
	elsewhere
)

// deletedMark ends the kernel's name of a file that has none any more.
const deletedMark = " (deleted)"

// rootOf tells whether the database that a containerd has open is that of a directory, and
// which root it is of, with the kernel's mark where it is gone. One that has none open is
// just starting, or ending.
func rootOf(number int, p paths) (root string, at where) {
	open := filepath.Join("/proc", strconv.Itoa(number), "fd")
	entries, err := os.ReadDir(open)
	if err != nil {
		return "", unseen
	}
	for _, entry := range entries {
		path := filepath.Join(open, entry.Name())
		name, err := os.Readlink(path)
		plain := strings.TrimSuffix(name, deletedMark)
		if err != nil || !strings.HasSuffix(plain, "/"+database) {
			continue
		}
		root = strings.TrimSuffix(plain, "/"+database) + strings.TrimPrefix(name, plain)
		if sameFile(path, filepath.Join(p.root, database)) {
			return root, here
		}
		at = elsewhere
	}
	return root, at
}

// startedFor returns the containerds that spawn has started for a directory, in order.
func startedFor(p paths) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []int
	for _, entry := range entries {
		number, err := strconv.Atoi(entry.Name())
		if err == nil && isFor(number, p) {
			found = append(found, number)
		}
	}
	slices.Sort(found)
	return found
}

// isFor tells whether a process is a containerd that was started for a directory. A path
// alone does not tell: in another root, or behind other mounts, it is another directory's.
func isFor(number int, p paths) bool {
	proc := filepath.Join("/proc", strconv.Itoa(number))
	line, err := os.ReadFile(filepath.Join(proc, "cmdline"))
	if err != nil {
		return false
	}
	args := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	if len(args) != 3 || args[1] != "--config" || !filepath.IsAbs(args[2]) {
		return false
	}
	theirs, ours := filepath.Dir(args[2]), filepath.Dir(p.config)
	return filepath.Base(args[2]) == filepath.Base(p.config) && filepath.Base(theirs) == filepath.Base(ours) &&
		sameFile(filepath.Join(proc, "root"), "/") && sameFile(filepath.Join(proc, "root", filepath.Dir(theirs)), filepath.Dir(ours))
}

// shimsAt counts the shims that name a containerd's address.
func shimsAt(address string) (count int) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is a good one
	for _, path := range lines {
		line, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		args := strings.Split(string(line), "\x00")
		at := slices.Index(args, "-address")
		if strings.HasPrefix(filepath.Base(args[0]), "containerd-shim") && at > 0 && at+1 < len(args) && args[at+1] == address {
			count++
		}
	}
	return count
}

// unnoted holds the containerd that works on the files of a directory though no pid file
// names it: its daemon was killed before it could write that.
func unnoted(p paths) (*process, bool) {
	for _, number := range startedFor(p) {
		pidfd, err := unix.PidfdOpen(number, 0)
		if err != nil {
			continue
		}
		proc := hold(number, pidfd, false)
		if _, at := rootOf(number, p); at == here && isFor(number, p) {
			return proc, true
		}
		proc.release()
	}
	return nil, false
}
