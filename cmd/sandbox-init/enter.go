package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// enterOptions are the arguments of the enter mode, which becomes the command:
//
//	--chdir DIR     the command's working directory
//	--filter FILE   the seccomp filter to put the command under
//	--user U:G[,G]  the command's uid, gid and other groups, all numbers
//	--              what follows is the command and its arguments
//
// The environment is the command's own.
type enterOptions struct {
	filter  string
	command command
}

func parseEnter(args []string) (o enterOptions, err error) {
	for len(args) > 1 && args[0] != "--" {
		switch args[0] {
		case "--chdir":
			o.command.dir = args[1]
		case "--filter":
			o.filter = args[1]
		case "--user":
			o.command.user, err = parseUser(args[1])
		default:
			err = errors.New("unknown")
		}
		if err != nil {
			return o, errors.New("bad argument of enter: " + args[0])
		}
		args = args[2:]
	}
	if len(args) < 2 || args[0] != "--" {
		return o, errors.New("enter needs -- and a command")
	}
	o.command.args, o.command.env = args[1:], os.Environ()
	return o, nil
}

// runEnter becomes a command beside that of a sandbox, or says on stderr why not and
// returns the code for it.
func runEnter(args []string) int {
	o, err := parseEnter(args)
	if err != nil {
		fail("%v", err)
	}
	runtime.LockOSThread()
	closeInherited(3)
	if o.filter != "" {
		if err := install(o.filter); err != nil {
			fail("seccomp filter: %v", err)
		}
	}
	if o.command.dir != "" {
		if err := unix.Chdir(o.command.dir); err != nil {
			return notEntered("working directory "+o.command.dir, err)
		}
	}
	if err := become(o.command.user); err != nil {
		fail("change user: %v", err)
	}
	path, err := lookup(o.command.args[0], o.command.env)
	if err == nil {
		err = unix.Exec(path, o.command.args, o.command.env)
	}
	return notEntered(o.command.args[0], err)
}

// become changes the user of the whole process; nil is the one that it has.
func become(user *syscall.Credential) error {
	if user == nil {
		return nil
	}
	groups := make([]int, len(user.Groups))
	for i, g := range user.Groups {
		groups[i] = int(g)
	}
	if err := syscall.Setgroups(groups); err != nil {
		return err
	}
	if err := syscall.Setgid(int(user.Gid)); err != nil {
		return err
	}
	return syscall.Setuid(int(user.Uid))
}

func notEntered(what string, err error) int {
	fmt.Fprintf(os.Stderr, "errand: %s: %v\n", what, err)
	return execCode(errno(err))
}
