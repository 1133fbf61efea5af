package journal

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// disk is the directory of a journal, as far as the journal asks of it.
type disk interface {
	// open opens a file that is there; the error is fs.ErrNotExist if it is not.
	open(name string) (file, error)
	// create makes an empty file, in the place of one that may be there.
	create(name string) (file, error)
	rename(from, to string) error
	remove(name string) error
	// sync makes names durable.
	sync() error
}

// file is a file on it.
type file interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Truncate(size int64) error
	// Sync makes all of it durable; Datasync only what it takes to read the data.
	Sync() error
	Datasync() error
	Size() (int64, error)
}

// directory is a disk by its path.
type directory string

type osFile struct{ *os.File }

func (d directory) path(name string) string { return filepath.Join(string(d), name) }

func (d directory) open(name string) (file, error) {
	f, err := os.OpenFile(d.path(name), os.O_RDWR, fileMode)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (d directory) create(name string) (file, error) {
	f, err := os.OpenFile(d.path(name), os.O_RDWR|os.O_CREATE|os.O_TRUNC, fileMode)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (d directory) rename(from, to string) error { return os.Rename(d.path(from), d.path(to)) }
func (d directory) remove(name string) error     { return os.Remove(d.path(name)) }

func (d directory) sync() error {
	dir, err := os.Open(string(d))
	if err != nil {
		return err
	}
	if err := dir.Sync(); err != nil {
		_ = dir.Close()
		return err
	}
	return dir.Close()
}

func (f osFile) Datasync() error {
	for {
		switch err := unix.Fdatasync(int(f.Fd())); err {
		case nil:
			return nil
		case unix.EINTR:
		default:
			return fmt.Errorf("fdatasync %s: %w", f.Name(), err)
		}
	}
}

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
