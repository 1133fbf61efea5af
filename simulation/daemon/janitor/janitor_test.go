package janitor

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/inventory"
	"github.com/errand-run/errand/nodes/sandbox/cgroup"
)

// asTests makes the test binary be a process of tests with its home below a directory.
const asTests = "ERRAND_JANITOR_TEST_PARENT"

func TestMain(m *testing.M) {
	if parent := os.Getenv(asTests); parent != "" {
		if err := beTests(parent); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		select {} // until it is killed
	}
	os.Exit(m.Run())
}

// beTests leaves what a process of tests does: a daemon, a command in a cgroup, a mount.
func beTests(parent string) error {
	home, err := Open(parent)
	if err != nil {
		return err
	}
	data := filepath.Join(home.Dir, "Test", "001")
	uuid := strings.TrimPrefix(filepath.Base(home.Dir), prefix)
	mounted := filepath.Join(data, "mounted")
	daemon := &exec.Cmd{Path: "/bin/sleep", Args: []string{filepath.Join(home.Dir, "errand-node"), "600"}}
	command := exec.Command("/bin/sleep", "600")
	err = errors.Join(os.MkdirAll(mounted, 0o700), os.WriteFile(filepath.Join(data, inventory.UUIDFile), []byte(uuid+"\n"), 0o600),
		unix.Mount("none", mounted, "tmpfs", 0, ""), daemon.Start(), command.Start())
	if err != nil {
		return err
	}
	groups, err := cgroup.Open(cgroup.Root, cgroup.ParentName(uuid))
	if err != nil {
		return err
	}
	group := groups.Group(records.SandboxID(uuid, 1, 1))
	if err := errors.Join(group.Create(cgroup.Limits{}), group.Add(command.Process.Pid)); err != nil {
		return err
	}
	fmt.Println(home.Dir, daemon.Process.Pid, command.Process.Pid)
	return nil
}

// tests is such a process.
type tests struct {
	command         *exec.Cmd
	dir             string
	daemon, started int
}

func startTests(t *testing.T, parent string) *tests {
	t.Helper()
	x := &tests{command: exec.Command(os.Args[0])}
	x.command.Env = append(os.Environ(), asTests+"="+parent)
	output, err := x.command.StdoutPipe()
	if err == nil {
		err = x.command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.kill)
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(line, &x.dir, &x.daemon, &x.started); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return x
}

func (x *tests) kill() {
	if x.command.ProcessState == nil {
		_ = x.command.Process.Kill()
		_ = x.command.Wait()
	}
}

// there tells what is left of it.
func (x *tests) there() (found []string) {
	for _, number := range []int{x.daemon, x.started} {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", number))
		if _, state, _ := strings.Cut(string(stat), ") "); err == nil && !strings.HasPrefix(state, "Z") {
			found = append(found, "process")
		}
	}
	if _, err := os.Stat(x.dir); !errors.Is(err, fs.ErrNotExist) {
		found = append(found, "directory")
	}
	if mounts, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(mounts), x.dir+"/") {
		found = append(found, "mount")
	}
	parent := cgroup.ParentName(strings.TrimPrefix(filepath.Base(x.dir), prefix))
	if trees, _ := filepath.Glob(cgroup.Root + "/*/" + parent); len(trees) > 0 {
		found = append(found, "cgroup")
	}
	return found
}

func TestWhatAKilledProcessLeavesIsRemovedAndNothingOfALivingOne(t *testing.T) {
	if os.Geteuid() != 0 && os.Getenv("CI") != "true" {
		t.Skip("cgroups and mounts need root")
	}
	parent := t.TempDir()
	dead, alive := startTests(t, parent), startTests(t, parent)
	if found := dead.there(); len(found) < 4 {
		t.Fatalf("there is only %v", found)
	}
	stranger := filepath.Join(parent, prefix+"stranger")
	if err := os.Mkdir(stranger, 0o700); err != nil {
		t.Fatal(err)
	}
	dead.kill()
	home, err := Open(parent)
	if err != nil {
		t.Fatal(err)
	}
	if found := dead.there(); len(found) > 0 {
		t.Errorf("of one that was killed there is %v", found)
	}
	if found := alive.there(); len(found) < 4 {
		t.Errorf("of one that lives there is only %v", found)
	}
	if _, err := os.Stat(stranger); err != nil {
		t.Errorf("a directory without an owner is gone: %v", err)
	}
	if err := home.Close(); err != nil {
		t.Error(err)
	}
	alive.kill()
	if home, err = Open(parent); err != nil {
		t.Fatal(err)
	}
	if found := alive.there(); len(found) > 0 {
		t.Errorf("of the other one, killed too, there is %v", found)
	}
	if err := home.Close(); err != nil {
		t.Error(err)
	}
}
