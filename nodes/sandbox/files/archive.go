// Package files copies files out of sandboxes that run. What lies in a sandbox is its
// command's to change at any moment, so no path is looked up in the host's root: a
// symbolic link that points out of the sandbox ends within it.
package files

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// depthMax bounds how deep a directory may be.
const depthMax = 256

// ErrNotFound is returned for a path that is not there.
var ErrNotFound = errors.New("there is no such file or directory")

// Archive writes a tar archive of what is at an absolute path below a root, a directory
// with all that is in it. Sockets, pipes, devices and the kernel's own file systems are
// left out. A file that shrinks meanwhile is filled up with zeros.
func Archive(ctx context.Context, root, name string, w io.Writer) error {
	base, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the sandbox's root: %w", err)
	}
	defer unix.Close(base)
	name = path.Clean("/" + name)
	file, err := open(ctx, base, name)
	if err != nil {
		return err
	}
	defer file.Close()
	a := &archive{ctx: ctx, w: tar.NewWriter(w)}
	top := path.Base(name)
	if name == "/" {
		top = "root"
	}
	if err := a.add(file, top, 0); err != nil {
		return err
	}
	return a.w.Close()
}

// open opens a path as a process would see it whose root is base.
func open(ctx context.Context, base int, name string) (*os.File, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	for {
		fd, err := unix.Openat2(base, name, &how)
		switch {
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
			// Something was moved meanwhile, which a command can do without end.
			if err := ctx.Err(); err != nil {
				return nil, err
			}
		case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR):
			return nil, fmt.Errorf("%s: %w", name, ErrNotFound)
		case err != nil:
			return nil, &fs.PathError{Op: "open", Path: name, Err: err}
		default:
			defer unix.Close(fd)
			return reading(fd, name)
		}
	}
}

// errSpecial is returned for what is neither a file nor a directory.
var errSpecial = errors.New("neither a file nor a directory")

// reading opens for reading what a descriptor stands for. Nothing else than a file or a
// directory is opened: a device may do something then, and who waits to write to a pipe
// would go on without a reader.
func reading(fd int, name string) (*os.File, error) {
	var about unix.Stat_t
	if err := unix.Fstat(fd, &about); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	if kind := about.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return nil, fmt.Errorf("%s is %w", path.Base(name), errSpecial)
	}
	again, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(again), name), nil
}

type archive struct {
	ctx context.Context //nolint:containedctx // of this one call
	w   *tar.Writer
}

// add adds what is open, under a name.
func (a *archive) add(file *os.File, name string, depth int) error {
	if err := a.ctx.Err(); err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if info.IsDir() {
		return a.addDir(file, info, name, depth)
	}
	return a.addFile(file, info, name)
}

func (a *archive) header(info fs.FileInfo, name, link string) error {
	header, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	header.Name = name
	if info.IsDir() {
		header.Name += "/"
	}
	header.Uname, header.Gname = "", "" // those of the host mean nothing
	return a.w.WriteHeader(header)
}

func (a *archive) addFile(file *os.File, info fs.FileInfo, name string) error {
	if err := a.header(info, name, ""); err != nil {
		return err
	}
	n, err := io.CopyN(a.w, interruptible{a.ctx, file}, info.Size())
	if errors.Is(err, io.EOF) {
		_, err = io.CopyN(a.w, zeros{}, info.Size()-n)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (a *archive) addDir(file *os.File, info fs.FileInfo, name string, depth int) error {
	var about unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &about); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if slices.Contains(kernels, int64(about.Type)) {
		if depth == 0 {
			return fmt.Errorf("%s is a file system of the kernel", name)
		}
		return nil
	}
	if depth >= depthMax {
		return fmt.Errorf("%s is more than %d directories deep", name, depthMax)
	}
	if err := a.header(info, name, ""); err != nil {
		return err
	}
	entries, err := file.ReadDir(-1)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, entry := range entries {
		if err := a.addEntry(file, entry, path.Join(name, entry.Name()), depth+1); err != nil {
			return err
		}
	}
	return nil
}

// kernels are the types of file systems that hold no files of anybody.
var kernels = []int64{
	unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC,
	unix.DEVPTS_SUPER_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.BPF_FS_MAGIC, unix.SECURITYFS_MAGIC,
}

// addEntry adds one entry of a directory; what is gone by now is left out.
func (a *archive) addEntry(dir *os.File, entry fs.DirEntry, name string, depth int) error {
	switch {
	case entry.Type()&fs.ModeSymlink != 0:
		return a.addLink(dir, entry, name)
	case !entry.IsDir() && !entry.Type().IsRegular():
		return nil
	}
	fd, err := unix.Openat(int(dir.Fd()), entry.Name(), unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return &fs.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	file, err := reading(fd, name)
	if errors.Is(err, errSpecial) {
		return nil // put in its place meanwhile
	}
	if err != nil {
		return err
	}
	defer file.Close()
	return a.add(file, name, depth)
}

func (a *archive) addLink(dir *os.File, entry fs.DirEntry, name string) error {
	var about unix.Stat_t
	target := make([]byte, unix.PathMax)
	err := unix.Fstatat(int(dir.Fd()), entry.Name(), &about, unix.AT_SYMLINK_NOFOLLOW)
	n := 0
	if err == nil {
		n, err = unix.Readlinkat(int(dir.Fd()), entry.Name(), target)
	}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL):
		return nil // gone, or none any more
	case err != nil:
		return &fs.PathError{Op: "readlink", Path: name, Err: err}
	}
	return a.w.WriteHeader(&tar.Header{
		Typeflag: tar.TypeSymlink, Name: name, Linkname: string(target[:n]), Mode: 0o777,
		ModTime: time.Unix(about.Mtim.Unix()), Uid: int(about.Uid), Gid: int(about.Gid),
	})
}

// interruptible ends with a context.
type interruptible struct {
	ctx context.Context //nolint:containedctx // of this one file
	io.Reader
}

func (r interruptible) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
