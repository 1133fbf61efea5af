package cgroup

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// unfencedNames are extended attributes of a group's directories, by any of which it is
// unfenced. The kernel takes the first since Linux 5.7, the second before, from root.
var unfencedNames = []string{"user.errand.unfenced", "trusted.errand.unfenced"}

// Unfence marks the group, which must be there, as one that goes on when the session of
// its node ends. The mark is the kernel's, in memory, and goes with the group.
func (g *Group) Unfence() error {
	marked := false
	for _, dir := range g.dirs {
		err := mark(dir.path)
		if vanished(err) {
			continue // a hierarchy that the group has no need of
		}
		if err != nil {
			return fmt.Errorf("mark cgroup %s as unfenced: %w", g.id, err)
		}
		marked = true
	}
	if !marked {
		return fmt.Errorf("mark cgroup %s as unfenced: %w", g.id, ErrUnavailable)
	}
	return nil
}

func mark(path string) (err error) {
	for _, name := range unfencedNames {
		if err = unix.Setxattr(path, name, []byte("1"), 0); err == nil || vanished(err) {
			return err
		}
	}
	return err
}

// Unfenced tells whether the group is marked. One that is not known to be is not: what
// is killed without need is told, what lives without leave is not.
func (g *Group) Unfenced() bool {
	for _, dir := range g.dirs {
		for _, name := range unfencedNames {
			if size, err := unix.Getxattr(dir.path, name, nil); err == nil && size > 0 {
				return true
			}
		}
	}
	return false
}
