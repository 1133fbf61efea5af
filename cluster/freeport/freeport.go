// Package freeport gives tests addresses of this machine that stay theirs.
//
// A port that the kernel chooses is a test's only for as long as it listens there. A server
// that stops and comes back on the same address, one that is told where to listen before it
// does, and an address on which nobody listens would all be at the mercy of whoever asks the
// kernel for a port meanwhile. So each process has a host of its own of the network
// 127.0.0.0/8, all of which leads back to this machine, and gives each of its ports once.
package freeport

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"sync/atomic"
)

// The ports that are given lie below those that the kernel chooses from.
const (
	portFirst = 10_000
	portLast  = 32_000
)

var given atomic.Int32

// Address returns an address, as host and port, on which nobody listens and which nobody
// else is given. It may be called from any goroutine, and fails when a process has asked
// 22,000 times.
func Address() (string, error) {
	host := hostOf(os.Getpid())
	for {
		port := portFirst + int(given.Add(1)) - 1
		if port > portLast {
			return "", fmt.Errorf("all ports of %s are given", host)
		}
		address := net.JoinHostPort(host, strconv.Itoa(port))
		// Somebody may listen on this port of all hosts.
		if listener, err := net.Listen("tcp", address); err == nil {
			return address, listener.Close()
		}
	}
}

// hostOf is the host of a process: the numbers of processes have 22 bits.
func hostOf(pid int) string {
	return fmt.Sprintf("127.%d.%d.%d", 64|pid>>16&63, pid>>8&255, pid&255)
}
