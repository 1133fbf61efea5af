package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// OOMKills returns how many processes of the group the kernel killed for want of
// memory; 0 where nobody counts.
func (g *Group) OOMKills() (int, error) {
	b, err := g.readMemory("memory.oom_control", "memory.events")
	if err != nil {
		return 0, fmt.Errorf("count OOM kills: %w", err)
	}
	return counter(b, "oom_kill"), nil
}

// MemoryPeak returns the most memory that the processes of the group have used at one
// time, in bytes; 0 where nobody measures it, as kernels before 5.19 with cgroup v2.
func (g *Group) MemoryPeak() (int64, error) {
	b, err := g.readMemory("memory.max_usage_in_bytes", "memory.peak")
	if err != nil || b == "" {
		return 0, wrapPeak(err)
	}
	peak, err := strconv.ParseInt(strings.TrimSpace(b), 10, 64)
	if err != nil || peak < 0 {
		return 0, wrapPeak(fmt.Errorf("it is %q", strings.TrimSpace(b)))
	}
	return peak, nil
}

func wrapPeak(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("read the memory peak: %w", err)
}

// readMemory reads a file of the memory controller, named as v1 and as v2 name it;
// nothing where there is none.
func (g *Group) readMemory(v1, v2 string) (string, error) {
	for _, dir := range g.dirs {
		var file string
		switch {
		case dir.controller == "memory":
			file = v1
		case dir.controller == "" && g.parent.unified:
			file = v2
		default:
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir.path, file))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return "", nil
		}
		return string(b), err
	}
	return "", nil
}

// counter returns the number after a key in lines of "KEY NUMBER".
func counter(text, key string) int {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.Atoi(value); name == key && err == nil {
			return n
		}
	}
	return 0
}
