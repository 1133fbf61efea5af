package containerd

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/sandbox/cgroup"
)

// swapIsCounted tells whether a limit of memory and swap together can be set. A
// kernel of cgroup v1 without swap accounting lacks the file, and the runtime would
// fail; with v2 the runtime leaves out what can not be limited.
var swapIsCounted = sync.OnceValue(func() bool {
	v1 := filepath.Join(cgroup.Root, "memory")
	if _, err := os.Stat(v1); err != nil {
		return true
	}
	_, err := os.Stat(filepath.Join(v1, "memory.memsw.limit_in_bytes"))
	return err == nil
})

// trees returns the mounted cgroup trees: the runtime makes a sandbox's directory in
// every one, those that package cgroup has no use for included.
func trees() []string {
	if _, err := os.Stat(filepath.Join(cgroup.Root, "cgroup.controllers")); err == nil {
		return []string{cgroup.Root}
	}
	entries, err := os.ReadDir(cgroup.Root)
	if err != nil {
		return nil
	}
	var found []string
	for _, entry := range entries {
		if entry.IsDir() {
			found = append(found, filepath.Join(cgroup.Root, entry.Name()))
		}
	}
	return found
}

// removeGroups removes a sandbox's empty directories in every tree.
func removeGroups(parent, id string) {
	for _, tree := range trees() {
		_ = unix.Rmdir(filepath.Join(tree, parent, id))
	}
}

// removeParents removes the node's own directory in every tree where no sandbox is
// left.
func removeParents(parent string) {
	for _, tree := range trees() {
		_ = unix.Rmdir(filepath.Join(tree, parent))
	}
}

// inGroup tells whether a process belongs to a cgroup.
func inGroup(pid int, path string) bool {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(content)) {
		if strings.HasSuffix(strings.TrimSpace(line), ":"+path) {
			return true
		}
	}
	return false
}
