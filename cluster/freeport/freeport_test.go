package freeport

import (
	"net"
	"testing"
)

func TestAddressesAreGivenOnceAndFree(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		address, err := Address()
		if err != nil || seen[address] {
			t.Fatalf("%s, %v; seen: %t", address, err, seen[address])
		}
		seen[address] = true
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
	}
}

func TestAddressOfAPortThatIsTakenOnAllHostsIsNotGiven(t *testing.T) {
	before, err := Address()
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(before)
	if err != nil {
		t.Fatal(err)
	}
	everywhere, err := net.Listen("tcp", ":"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer everywhere.Close()
	given.Add(-1)
	if after, err := Address(); err != nil || after == before {
		t.Errorf("given %s, %v", after, err)
	}
}

func TestProcessesHaveHostsOfTheirOwn(t *testing.T) {
	for pid, want := range map[int]string{1: "127.64.0.1", 256: "127.64.1.0", 1 << 16: "127.65.0.0", 4194303: "127.127.255.255"} {
		if got := hostOf(pid); got != want {
			t.Errorf("%d has %s, want %s", pid, got, want)
		}
	}
}
