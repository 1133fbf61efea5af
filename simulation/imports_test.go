package simulation_test

import (
	"os/exec"
	"strings"
	"testing"
)

// What worlds are made of knows no adapter, no wiring and no real store, disk or
// runtime: it can not reach anything outside of the process.
func TestWorldsReachNothingReal(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "github.com/errand-run/errand/cmd/simulate").Output()
	if err != nil {
		t.Fatalf("list what simulate is made of: %v", err)
	}
	const module = "github.com/errand-run/errand/"
	for _, dependency := range strings.Fields(string(out)) {
		for _, banned := range []string{
			module + "boot", module + "cluster/store", module + "cluster/membership", module + "nodes/journal", module + "nodes/clock",
			module + "nodes/sandbox/", module + "nodes/pool", module + "nodes/logs", module + "api",
			"go.etcd.io/", "github.com/containerd/", "github.com/hashicorp/memberlist", "google.golang.org/grpc",
		} {
			if strings.HasPrefix(dependency, banned) {
				t.Errorf("simulate is built with %s", dependency)
			}
		}
	}
}
