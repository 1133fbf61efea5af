package journal

import (
	"fmt"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"
)

// openSound opens the file and reads all of it once, so that damage shows now and
// as an error. bbolt maps the file: reading past a torn end is a fault of the
// processor, which is caught here and only here.
func openSound(path string) (db *bolt.DB, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	var opened *bolt.DB
	defer func() {
		if r := recover(); r != nil {
			// The file stays mapped: closing it could fault again.
			db, err = nil, fmt.Errorf("open journal %s: %w: %v", path, ErrDamaged, r)
		}
	}()
	opened, err = bolt.Open(path, fileMode, options())
	if err != nil {
		return nil, fmt.Errorf("open journal %s: %w: %w", path, ErrDamaged, err)
	}
	if err := check(opened); err != nil {
		_ = opened.Close()
		return nil, fmt.Errorf("open journal %s: %w", path, err)
	}
	return opened, nil
}

func check(db *bolt.DB) error {
	if _, err := read(db); err != nil {
		return err
	}
	return nil
}
