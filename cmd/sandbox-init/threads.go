package main

import (
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// useFewThreads keeps the runtime to one processor, and from collecting garbage, of
// which init makes next to none: then a goroutine needs a thread only while it waits in
// the kernel.
func useFewThreads() {
	debug.SetGCPercent(-1)
	runtime.GOMAXPROCS(1)
}

// threadsNeeded is how many an init was ever seen to have whose runtime is kept to one
// processor. It is part of cgroup.InitPids.
const threadsNeeded = 7

// reserveThreads makes the threads that init may ever need. A command that uses up the
// limit of processes can then not keep init from one: the runtime ends a program that
// gets none.
func reserveThreads(count int) error {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	// What waits in the kernel has a thread, which the runtime keeps for later. The read
	// end stays open, since the readers need a moment to let go of it.
	for threads() < count {
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
