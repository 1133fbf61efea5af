package boot

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// machineMemory is the machine's memory in bytes, 1 GiB where it can not be read.
func machineMemory() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 1 << 30
	}
	return int64(info.Totalram) * int64(info.Unit) //nolint:gosec // a machine's memory fits
}

// bootID names this boot of the machine: another one means that no process of an
// earlier session can still run.
func bootID() (string, error) {
	const path = "/proc/sys/kernel/random/boot_id"
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	id := strings.TrimSpace(string(text))
	if id == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return id, nil
}
