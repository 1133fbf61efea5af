package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// openSound reads all of the file once before it opens it for good, so that
// damage shows now and as an error: what bbolt does when it opens a file for
// writing would find the damage on a goroutine of its own and end the process.
func openSound(path string) (*bolt.DB, error) {
	if err := check(path); err != nil {
		return nil, fmt.Errorf("open journal %s: %w%s", path, err, advice(err))
	}
	db, err := bolt.Open(path, fileMode, options())
	if err != nil {
		return nil, fmt.Errorf("open journal %s: %w", path, err)
	}
	return db, nil
}

// advice says what to do about a journal that can not be used.
func advice(err error) string {
	if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrFormat) {
		return ""
	}
	return ": put a good copy in its place; if there is none, move it away and start once with --accept-loss-of journal, " +
		"which stops what still runs (see \"The daemon\" in docs/troubleshooting.md)"
}

// check reads the file without the right to change it. bbolt maps it and trusts
// what it finds: a bad page is a panic there, and reading past a torn end is a
// fault of the processor. Both are caught here and only here.
func check(path string) (err error) {
	readOnly := options()
	readOnly.ReadOnly = true
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			// What it panicked with speaks of bbolt's insides.
			err = fmt.Errorf("%w: its pages do not fit together", ErrDamaged)
		}
	}()
	db, err := bolt.Open(path, fileMode, readOnly)
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, bolterrors.ErrTimeout):
		return err
	case err != nil:
		return fmt.Errorf("%w: it can not be read (%w)", ErrDamaged, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	_, _, err = read(db)
	return err
}
