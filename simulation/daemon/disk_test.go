package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// disk is a file system of its own that passes everything on to a folder, and can be
// slow, stand still, or fail: what a real disk does and no test can ask of one.
type disk struct {
	path string

	mu sync.Mutex
	// delay is how long each sync takes longer, refusal what it is answered with.
	delay   time.Duration
	refusal syscall.Errno
	// gone is closed when writes and syncs may go on, nil while they may.
	gone chan struct{}
	// opening is closed when files may be opened, nil while they may.
	opening chan struct{}
	// held counts the syncs that met the delay, the refusal or the standstill,
	// writes included.
	held int
}

// newDisk mounts one, until the test ends. Its folder is on the disk of the tests.
func newDisk(t *testing.T) *disk {
	t.Helper()
	if err := canMount(); err != nil {
		// A user's machine may have no FUSE; ours must.
		if os.Getenv("CI") == "true" {
			t.Fatalf("a file system of one's own: %v", err)
		}
		t.Skipf("a file system of one's own: %v", err)
	}
	d := &disk{path: t.TempDir()}
	inner, err := fs.NewLoopbackRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	loopback, ok := inner.(*fs.LoopbackNode)
	if !ok {
		t.Fatalf("the root is a %T", inner)
	}
	root := &diskNode{LoopbackNode: loopback, disk: d}
	loopback.RootData.RootNode = root
	second := time.Second
	// Between the opening of its file and the mark below nothing may be forked.
	syscall.ForkLock.RLock()
	server, err := fs.Mount(d.path, root, &fs.Options{
		EntryTimeout: &second, AttrTimeout: &second,
		MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: "errand-test", Name: "errand-test"},
	})
	err = errors.Join(err, keepFromChildren("/dev/fuse"))
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	connection, err := connectionOf(d.path)
	if err != nil {
		t.Error(err)
	}
	t.Cleanup(func() {
		d.comeBack()
		d.holdOpens(false)
		// Whoever has copied our mounts meanwhile, for a sandbox, has this one too, and the
		// server would serve it for as long.
		abort(t, connection)
		if err := server.Unmount(); err != nil {
			t.Error(err)
		}
		server.Wait()
	})
	return d
}

// connectionOf returns the kernel's number for the server of a file system.
func connectionOf(path string) (uint32, error) {
	var root unix.Stat_t
	if err := unix.Stat(path, &root); err != nil {
		return 0, fmt.Errorf("which connection serves %s: %w", path, err)
	}
	return unix.Minor(root.Dev), nil
}

// abort ends a connection for all who have mounted what it serves.
func abort(t *testing.T, connection uint32) {
	t.Helper()
	control := t.TempDir()
	if err := unix.Mount("fusectl", control, "fusectl", 0, ""); err != nil {
		t.Errorf("the control of FUSE: %v", err)
		return
	}
	err := os.WriteFile(filepath.Join(control, strconv.FormatUint(uint64(connection), 10), "abort"), []byte("1"), 0)
	if err = errors.Join(err, unix.Unmount(control, 0)); err != nil {
		t.Errorf("abort connection %d: %v", connection, err)
	}
}

// keepFromChildren marks the open files of a name, so that no child inherits them: a
// daemon that holds the file of its own disk open can not be killed while it waits
// for that disk.
func keepFromChildren(name string) error {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, entry := range open {
		if target, err := os.Readlink("/proc/self/fd/" + entry.Name()); err != nil || target != name {
			continue
		}
		fd, err := strconv.Atoi(entry.Name())
		if err != nil {
			return err
		}
		syscall.CloseOnExec(fd)
	}
	return nil
}

// canMount tells why there can be none.
func canMount() error {
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.Join(errors.New("only root may mount one"), device.Close())
	}
	return device.Close()
}

// slow lets each sync take so much longer.
func (d *disk) slow(by time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.delay = by
}

// fail answers each sync with an error, none for 0.
func (d *disk) fail(with syscall.Errno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refusal = with
}

// leave lets every write and every sync wait until comeBack.
func (d *disk) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gone = make(chan struct{})
}

func (d *disk) comeBack() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gone != nil {
		close(d.gone)
		d.gone = nil
	}
}

// holdOpens lets every opening of a file wait, until it is told otherwise.
func (d *disk) holdOpens(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.opening != nil {
		close(d.opening)
		d.opening = nil
	}
	if on {
		d.opening = make(chan struct{})
	}
}

// met is how many writes and syncs met trouble.
func (d *disk) met() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.held
}

// pass holds up a write, or a sync, as the disk is at the moment.
func (d *disk) pass(sync bool) syscall.Errno {
	d.mu.Lock()
	gone, delay, refusal := d.gone, d.delay, d.refusal
	if !sync {
		delay, refusal = 0, 0
	}
	if gone != nil || delay > 0 || refusal != 0 {
		d.held++
	}
	d.mu.Unlock()
	if gone != nil {
		<-gone
	}
	if delay > 0 {
		<-time.After(delay)
	}
	return refusal
}

// diskNode is a file or a folder of it.
type diskNode struct {
	*fs.LoopbackNode
	disk *disk
}

var (
	_ fs.NodeWrapChilder = (*diskNode)(nil)
	_ fs.NodeCreater     = (*diskNode)(nil)
	_ fs.NodeOpener      = (*diskNode)(nil)
)

// WrapChild implements fs.NodeWrapChilder.
func (n *diskNode) WrapChild(_ context.Context, child fs.InodeEmbedder) fs.InodeEmbedder {
	return &diskNode{LoopbackNode: child.(*fs.LoopbackNode), disk: n.disk}
}

// Create implements fs.NodeCreater.
func (n *diskNode) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	inode, file, fuseFlags, errno := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	return inode, n.wrap(file, errno), fuseFlags, errno
}

// Open implements fs.NodeOpener.
func (n *diskNode) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	n.disk.mu.Lock()
	opening := n.disk.opening
	n.disk.mu.Unlock()
	if opening != nil {
		select {
		case <-opening:
		case <-ctx.Done():
			return nil, 0, syscall.EINTR
		}
	}
	file, fuseFlags, errno := n.LoopbackNode.Open(ctx, flags)
	return n.wrap(file, errno), fuseFlags, errno
}

func (n *diskNode) wrap(file fs.FileHandle, errno syscall.Errno) fs.FileHandle {
	if errno != 0 {
		return nil
	}
	return &diskFile{LoopbackFile: file.(*fs.LoopbackFile), disk: n.disk}
}

// diskFile is an open file of it.
type diskFile struct {
	*fs.LoopbackFile
	disk *disk
}

var (
	_ fs.FileWriter          = (*diskFile)(nil)
	_ fs.FileFsyncer         = (*diskFile)(nil)
	_ fs.FileAllocater       = (*diskFile)(nil)
	_ fs.FilePassthroughFder = (*diskFile)(nil)
)

// PassthroughFd implements fs.FilePassthroughFder: the kernel may not go past us.
func (*diskFile) PassthroughFd() (int, bool) { return 0, false }

// Write implements fs.FileWriter.
func (f *diskFile) Write(ctx context.Context, data []byte, offset int64) (uint32, syscall.Errno) {
	if errno := f.disk.pass(false); errno != 0 {
		return 0, errno
	}
	return f.LoopbackFile.Write(ctx, data, offset)
}

// Allocate implements fs.FileAllocater.
func (f *diskFile) Allocate(ctx context.Context, offset, size uint64, mode uint32) syscall.Errno {
	if errno := f.disk.pass(false); errno != 0 {
		return errno
	}
	return f.LoopbackFile.Allocate(ctx, offset, size, mode)
}

// Fsync implements fs.FileFsyncer.
func (f *diskFile) Fsync(ctx context.Context, flags uint32) syscall.Errno {
	if errno := f.disk.pass(true); errno != 0 {
		return errno
	}
	return f.LoopbackFile.Fsync(ctx, flags)
}
