package main

import (
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// reserveThreads makes the threads that init may ever need, of the count that drivers
// add to a limit of processes. A command that uses its limit up can then not keep init
// from one: the runtime ends a program that gets none.
//
// With one processor of the runtime, and without collections of garbage, of which init
// makes next to none, a goroutine needs a thread only while it waits in the kernel.
func reserveThreads(share int) error {
	debug.SetGCPercent(-1)
	runtime.GOMAXPROCS(1)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	// What waits in the kernel has a thread, which the runtime keeps for later. Up to two
	// more come with the command's start, which are left room for. The read end stays
	// open, since the readers need a moment to let go of it.
	for threads() < share-2 {
		go func() {
			var b [1]byte
			_, _ = unix.Read(pipe[0], b[:])
		}()
		runtime.Gosched()
	}
	return unix.Close(pipe[1])
}

// threads counts those that the runtime has.
func threads() int {
	count, _ := runtime.ThreadCreateProfile(nil)
	return count
}
