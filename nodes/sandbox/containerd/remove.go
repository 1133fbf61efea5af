package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/logs"
	"github.com/errand-run/errand/nodes/logs/logger"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/containerd/quiet"
	"github.com/errand-run/errand/nodes/sandbox/guest/pid"
)

const (
	// removeMax bounds the removal of what a failed Create left.
	removeMax = 2 * time.Minute
	// deleteMax is how long a shim may take to delete its task before its logger, and
	// then itself, is killed.
	deleteMax = 3 * time.Second
	// clearMax is how long containerd may take to clear up after a shim that was killed.
	clearMax = 10 * time.Second
	// recordMax bounds the removal of one record.
	recordMax = 15 * time.Second
	// groupMax bounds the removal of cgroup directories.
	groupMax = 2 * time.Second

	// Where shims and runc keep what is theirs, whichever containerd they belong to.
	shimSocketDir = "/run/containerd/s"
	runcRoot      = "/run/containerd/runc"
	// bundlesDir is where containerd's state directory has those of tasks.
	bundlesDir = "io.containerd.runtime.v2.task"
)

// Flush has the logger write the log to its end. Where the logger is lost the log gets
// an end mark that says "incomplete", for readers who wait for one.
func (d *Driver) Flush(ctx context.Context, id string) (bool, error) {
	ctx = quiet.Context(ctx)
	n, err := d.readNote(id)
	if records.ClassOf(err) == records.ClassNotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	complete, err := logger.Flush(ctx, d.dir(id))
	switch {
	case err == nil:
		return complete, nil
	case errors.Is(err, logger.ErrUnwritten):
		return false, fmt.Errorf("flush sandbox %s: %w", id, sandbox.ErrLogUnwritten)
	}
	if !errors.Is(err, logger.ErrNoLogger) {
		if ctx.Err() != nil {
			return false, records.Errorf(records.ClassDeadline, "sandbox %s: %w", id, err)
		}
		d.log.Warn("a sandbox's logger does not answer, it is killed", zap.String("sandbox", id), zap.Error(err))
		d.killLogger(id)
	}
	return d.seal(ctx, id, n.LogPath)
}

// seal returns what the end mark of a log without a logger says, and writes one where
// there is none.
func (d *Driver) seal(ctx context.Context, id, path string) (bool, error) {
	if path == "" {
		return false, nil
	}
	reader, err := logs.OpenReader(path, logs.Options{Tail: 1})
	if err != nil {
		return false, fmt.Errorf("flush sandbox %s: %w", id, err)
	}
	for err == nil {
		_, err = reader.Next(ctx)
	}
	end, sealed := reader.End()
	if err := reader.Close(); err != nil {
		return false, fmt.Errorf("flush sandbox %s: %w", id, err)
	}
	if ctx.Err() != nil {
		return false, records.Errorf(records.ClassDeadline, "flush sandbox %s: %w", id, ctx.Err())
	}
	if sealed {
		return end.Complete, nil
	}
	writer, err := logs.Create(path, logs.WriterOptions{SegmentBytes: d.config.LogSegmentBytes, Segments: d.config.LogSegments})
	if err != nil {
		return false, fmt.Errorf("flush sandbox %s: %w", id, err)
	}
	writer.End(false)
	writer.Close()
	return false, nil
}

// killLogger kills the logger that the sandbox's directory names.
func (d *Driver) killLogger(id string) {
	content, err := os.ReadFile(filepath.Join(d.dir(id), logger.PIDFile))
	if err != nil {
		return
	}
	if ref, err := pid.Parse(string(content)); err == nil {
		_ = ref.Signal(unix.SIGKILL)
	}
}

// Remove removes all that a sandbox left but its log: task, shim, container, snapshot,
// lease, cgroups, files. Each step has a deadline of its own; a hung logger or shim is
// killed. It may be repeated, and goes on where it stopped.
func (d *Driver) Remove(ctx context.Context, id string) error {
	ctx = quiet.Context(ctx)
	if err := checkID(id); err != nil {
		return err
	}
	if err := d.leaveImage(id); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	if d.unmade(id) {
		// All that is ours of it is gone but for traces; what is there may be another's.
		if done, err := d.leaveOthers(ctx, id, d.othersState(id)); done || err != nil {
			return err
		}
	}
	if err := d.removeTask(ctx, id); err != nil {
		return err
	}
	if err := d.removeRecords(ctx, id); err != nil {
		return err
	}
	step, cancel := own(ctx, groupMax)
	defer cancel()
	if err := d.parent.Group(id).Remove(step); err != nil {
		return records.Errorf(records.ClassUnavailable, "remove sandbox %s: %w", id, err)
	}
	removeGroups(d.parent.Name(), id)
	if err := d.removeDir(id); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	d.exits.Delete(id)
	d.killed.Delete(id)
	return nil
}

// removing begins the name of a sandbox's directory while it is removed.
const removing = ".removing-"

// removeDir removes a sandbox's directory. It goes under its name as a whole: one that
// a crash left without its note would pass for a sandbox that nobody made.
func (d *Driver) removeDir(id string) error {
	gone := filepath.Join(d.config.Dir, removing+id)
	if err := os.Rename(d.dir(id), gone); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.RemoveAll(gone)
}

// finishRemovals removes the directories below dir whose removal a crash has cut short.
func finishRemovals(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), removing) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, entry.Name())))
		}
	}
	return err
}

// removeTask ends what runs and deletes the task, with growing force.
func (d *Driver) removeTask(ctx context.Context, id string) error {
	var last error
	forces := []func(){
		func() {},
		func() { d.killProcesses(ctx, id) },
		func() { d.killProcesses(ctx, id); d.killLogger(id) },
		func() { d.killShims(id) },
	}
	for i, force := range forces {
		if ctx.Err() != nil {
			return records.Errorf(records.ClassDeadline, "remove sandbox %s: %w", id, ctx.Err())
		}
		if last != nil && i < len(forces)-1 && d.shimStopped(id) {
			// No force but the last helps.
			continue
		}
		force()
		last = d.deleteTask(ctx, id)
		switch {
		case last == nil:
			// containerd says nothing of a directory that it could not remove.
			return d.removeBundle(id)
		case errdefs.IsUnavailable(last):
			return filtered(last, "remove sandbox", id)
		case errdefs.IsNotFound(last):
			return d.clearOrphans(ctx, id)
		}
	}
	step, cancel := own(ctx, clearMax)
	defer cancel()
	tick := time.NewTicker(rehear)
	defer tick.Stop()
	for {
		_, err := d.ask(step, id)
		if errdefs.IsNotFound(err) {
			return d.clearOrphans(ctx, id)
		}
		select {
		case <-step.Done():
			return records.Errorf(records.ClassUnavailable, "remove sandbox %s: its task can not be deleted: %s", id, cause(last))
		case <-tick.C:
		}
	}
}

func (d *Driver) deleteTask(ctx context.Context, id string) error {
	step, cancel := own(ctx, deleteMax)
	defer cancel()
	_, err := d.client.TaskService().Delete(step, &tasks.DeleteTaskRequest{ContainerID: id})
	return native(err)
}

func (d *Driver) killProcesses(ctx context.Context, id string) {
	step, cancel := own(ctx, deleteMax)
	defer cancel()
	_, _ = d.parent.Group(id).Kill(step)
}

// clearOrphans removes what a task leaves that containerd no longer knows: processes,
// shims, the runtime's state, a socket.
func (d *Driver) clearOrphans(ctx context.Context, id string) error {
	if !d.exists(id) && !d.parent.Group(id).Exists() && len(d.shims(id)) == 0 {
		return nil
	}
	d.killShims(id)
	step, cancel := own(ctx, clearMax)
	defer cancel()
	if _, err := d.parent.Group(id).Kill(step); err != nil {
		return records.Errorf(records.ClassUnavailable, "remove sandbox %s: %w", id, err)
	}
	d.killLogger(id)
	d.awaitClearing(step, id)
	if err := d.removeBundle(id); err != nil {
		return records.Errorf(records.ClassUnavailable, "remove sandbox %s: its bundle: %w", id, err)
	}
	_ = os.Remove(filepath.Join(shimSocketDir, shimSocket(d.config.Address, d.config.Namespace, id)))
	_ = os.RemoveAll(filepath.Join(runcRoot, d.config.Namespace, id))
	return nil
}

// exists tells whether there is anything of a sandbox among the files that are its own,
// its shim's and its runtime's.
func (d *Driver) exists(id string) bool {
	paths := append(d.bundles(id), d.dir(id), filepath.Join(runcRoot, d.config.Namespace, id),
		filepath.Join(shimSocketDir, shimSocket(d.config.Address, d.config.Namespace, id)))
	return slices.ContainsFunc(paths, func(path string) bool {
		_, err := os.Lstat(path)
		return err == nil
	})
}

// hidden begins the name of a task's directory while containerd removes it. One that is
// killed meanwhile never comes back to it, and can remove no other directory of the same
// task from then on.
const hidden = "."

// bundles are the directories that a task may have, those that are being removed first.
func (d *Driver) bundles(id string) []string {
	dir := filepath.Join(d.config.StateDir, bundlesDir, d.config.Namespace)
	return []string{filepath.Join(dir, hidden+id), filepath.Join(dir, id)}
}

// removeBundle removes the directories of a task that containerd has forgotten. One that is
// killed while it clears up finds a directory again when it is back, and leaves it for
// ever once the container's record is gone.
func (d *Driver) removeBundle(id string) error {
	var all error
	for _, bundle := range d.bundles(id) {
		if _, err := os.Lstat(bundle); err != nil {
			continue // as it should be
		}
		// What is mounted there is the sandbox's own files: they go with its snapshot.
		rootfs := filepath.Join(bundle, "rootfs")
		err := unix.Unmount(rootfs, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		for err == nil {
			err = unix.Unmount(rootfs, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			all = errors.Join(all, fmt.Errorf("unmount %s: %w", rootfs, err))
			continue
		}
		work, err := os.Readlink(filepath.Join(bundle, "work"))
		if err == nil && filepath.Base(work) == id {
			err = errors.Join(os.RemoveAll(work), os.RemoveAll(filepath.Join(filepath.Dir(work), hidden+id)))
		}
		all = errors.Join(all, ignoreAbsence(err), os.RemoveAll(bundle))
	}
	return all
}

func ignoreAbsence(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// awaitClearing waits while containerd clears up after a shim: it runs the shim once
// more, as a program that deletes what is left at the runtime.
func (d *Driver) awaitClearing(ctx context.Context, id string) {
	tick := time.NewTicker(goneEvery)
	defer tick.Stop()
	for {
		_, err := os.Stat(filepath.Join(runcRoot, d.config.Namespace, id))
		if err != nil && len(d.shimProcesses(id, true)) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// shimStopped tells whether a sandbox has a shim that is stopped, and will answer
// nothing for as long as it is.
func (d *Driver) shimStopped(id string) bool {
	for _, shim := range d.shims(id) {
		if shim.Stopped() {
			return true
		}
	}
	return false
}

// killShims kills the shims of a sandbox and waits until they are gone; containerd
// then clears their mounts and directories.
func (d *Driver) killShims(id string) {
	for _, shim := range d.shims(id) {
		pidfd, err := shim.Open()
		if err != nil {
			continue
		}
		_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
		// A pidfd is readable once its process has ended.
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(deleteMax.Milliseconds())) //nolint:gosec // a descriptor
		_ = unix.Close(pidfd)
	}
}

// shims finds the shims of a sandbox by their arguments: containerd of our address, our
// namespace, this id.
func (d *Driver) shims(id string) []pid.Ref { return d.shimProcesses(id, false) }

// shimProcesses finds shims, or the programs that clear up after one.
func (d *Driver) shimProcesses(id string, clearing bool) []pid.Ref {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []pid.Ref
	for _, entry := range entries {
		number, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		content, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err != nil {
			continue
		}
		args := strings.Split(string(content), "\x00")
		if !isShim(args, d.config.Address, d.config.Namespace) || value(args, "-id") != id || slices.Contains(args, "delete") != clearing {
			continue
		}
		if ref, err := pid.Of(number); err == nil {
			found = append(found, ref)
		}
	}
	return found
}

func value(args []string, name string) string {
	for i := range len(args) - 1 {
		if args[i] == name {
			return args[i+1]
		}
	}
	return ""
}

// removeRecords removes container, snapshot and lease.
func (d *Driver) removeRecords(ctx context.Context, id string) error {
	step, cancel := own(ctx, recordMax)
	defer cancel()
	if err := d.client.ContainerService().Delete(step, id); err != nil && !errdefs.IsNotFound(err) {
		return filtered(err, "remove the container of sandbox", id)
	}
	if err := d.snapshot.Remove(step, id); err != nil && !errdefs.IsNotFound(err) {
		return filtered(err, "remove the snapshot of sandbox", id)
	}
	if err := d.leases.Delete(step, leases.Lease{ID: id}); err != nil && !errdefs.IsNotFound(err) {
		return filtered(err, "remove the lease of sandbox", id)
	}
	return nil
}
