package process

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
)

// resolveUser turns "user", "uid", "user:group" or "uid:gid" into what init's --user
// takes; empty means the daemon's own.
func resolveUser(spec string) (argument string, err error) {
	if spec == "" {
		return "", nil
	}
	name, group, grouped := strings.Cut(spec, ":")
	uid, gid, groups, err := lookupUser(name)
	if err != nil {
		return "", err
	}
	if grouped {
		groups = nil
		if gid, err = lookupGroup(group); err != nil {
			return "", err
		}
	}
	if os.Geteuid() != 0 {
		if uid != strconv.Itoa(os.Geteuid()) {
			return "", fmt.Errorf("user %q: the node does not run as root", spec)
		}
		return "", nil
	}
	argument = uid + ":" + gid
	for _, g := range groups {
		if g != gid {
			argument += "," + g
		}
	}
	return argument, nil
}

func lookupUser(name string) (uid, gid string, groups []string, err error) {
	found, err := user.Lookup(name)
	if err != nil {
		if _, numErr := strconv.ParseUint(name, 10, 31); numErr != nil {
			return "", "", nil, fmt.Errorf("unknown user %q", name)
		}
		if found, err = user.LookupId(name); err != nil {
			// A number needs no entry.
			return name, name, nil, nil
		}
	}
	groups, err = found.GroupIds()
	if err != nil {
		groups = nil
	}
	return found.Uid, found.Gid, groups, nil
}

func lookupGroup(name string) (gid string, err error) {
	if found, err := user.LookupGroup(name); err == nil {
		return found.Gid, nil
	}
	if _, err := strconv.ParseUint(name, 10, 31); err != nil {
		return "", fmt.Errorf("unknown group %q", name)
	}
	return name, nil
}
