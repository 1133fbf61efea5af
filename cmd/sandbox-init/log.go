package main

import (
	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/logs/logger"
)

// The descriptors that containerd gives a binary:// logger.
const (
	fdStdout = 3
	fdStderr = 4
	fdReady  = 5
)

// runLog is the log mode. Its one argument is a logger.Config; containerd makes
// "log CONFIG" of the URI binary:///path/of/sandbox-init?log=CONFIG.
func runLog(args []string) int {
	for fd := fdStdout; fd <= fdReady; fd++ {
		unix.CloseOnExec(fd)
	}
	closeInherited(fdReady + 1)
	if len(args) != 1 {
		fail("usage: sandbox-init log CONFIG")
	}
	c, err := logger.ParseConfig(args[0])
	if err != nil {
		fail("%v", err)
	}
	// containerd does not start the command before this is closed, and hangs if it
	// never is.
	ready := func() { _ = unix.Close(fdReady) }
	if err := logger.Run(c, fdStdout, fdStderr, ready); err != nil {
		fail("%v", err)
	}
	return 0
}
