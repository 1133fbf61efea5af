package process_test

import (
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/cgroup"
)

// A cgroup that is none of the driver's sandboxes' is listed as a trace, with what runs in
// it, and goes with it.
func TestCgroupsOfNobodyAreTraces(t *testing.T) {
	if os.Geteuid() != 0 && os.Getenv("CI") != "true" {
		t.Skip("cgroups need root")
	}
	c := config(t)
	d := open(t, c)
	defer d.Close()
	parent, err := cgroup.Open(cgroup.Root, c.CgroupParent)
	if err != nil {
		t.Fatal(err)
	}
	for name, alive := range map[string]bool{"empty": false, "with a process": true} {
		id := records.SandboxID("r.default."+name, 1, 1)
		group := parent.Group(id)
		if err := group.Create(cgroup.Limits{}); err != nil {
			t.Fatal(err)
		}
		var command *exec.Cmd
		if alive {
			command = exec.Command("sleep", "600")
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			if err := group.Add(command.Process.Pid); err != nil {
				t.Fatal(err)
			}
		}
		infos, err := d.List(t.Context())
		if want := []sandbox.Info{sandbox.TraceOf(id, alive)}; err != nil || !slices.EqualFunc(infos, want, func(a, b sandbox.Info) bool {
			return a.ID == b.ID && a.State == b.State && a.Trace && b.Trace
		}) {
			t.Errorf("%s: it lists %+v, %v", name, infos, err)
		}
		if killed, err := d.Kill(t.Context(), id); err != nil || killed != alive {
			t.Errorf("%s: kill gave %v, %v", name, killed, err)
		}
		if command != nil {
			_ = command.Wait() // killed
		}
		if err := d.Remove(t.Context(), id); err != nil || group.Exists() {
			t.Errorf("%s: remove gave %v, and the group is there: %v", name, err, group.Exists())
		}
	}
}
