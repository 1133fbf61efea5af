// Each sandbox pays for the start of the runtime: it need not read the host's mounts
// to find a CPU limit.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command sandbox-init is the one small binary that stands around a sandbox's
// command. It has four modes, named by the first argument:
//
//	init       PID 1 of a sandbox: starts the command, forwards signals, reaps, and
//	           leaves in the status file how it ended
//	log        writes the log of a container (containerd's binary:// logger)
//	supervise  is the init and the supervisor of a host command
//	enter      becomes a command beside that of a sandbox which runs
//
// It is static and depends on the standard library and x/sys only. Drivers get it
// from package guest. What drivers and modes agree on stands with each mode.
package main

import (
	"fmt"
	"os"
)

// exitSetup is the code of a mode that could not do its work at all.
const exitSetup = 125

func main() {
	if len(os.Args) < 2 {
		fail("usage: sandbox-init init|log|supervise|enter ...")
	}
	switch args := os.Args[2:]; os.Args[1] {
	case "init":
		os.Exit(runInit(args))
	case "log":
		os.Exit(runLog(args))
	case "supervise":
		os.Exit(runSupervise(args))
	case "enter":
		os.Exit(runEnter(args))
	default:
		fail("unknown mode %q", os.Args[1])
	}
}

// fail ends the process; what it says lands in the sandbox's stderr.
func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "sandbox-init: "+format+"\n", args...)
	os.Exit(exitSetup)
}
