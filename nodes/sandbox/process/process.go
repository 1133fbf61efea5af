// Package process is the driver that runs commands of the host. Each has a small
// supervisor of its own (sandbox-init supervise) in place of the daemon as its
// parent, so commands and their codes survive the daemon.
//
// As root a command gets namespaces of its own (processes, mounts, IPC, host name)
// and a cgroup with its limits. The supervisor is PID 1 of the namespace: it reaps,
// and all ends with it. Otherwise a command runs without both, and one with a limit
// is refused. Its files are the host's: this driver isolates, it does not protect.
//
// # On disk
//
// A sandbox is one file in Config.Dir. It begins with the slots of package status: how
// far the command has come. The final slot is synced: nothing is left alive then, and
// the log has its end. Lines follow, and zeros:
//
//	JSON        what it is (neither environment nor command)
//	started     from before anything can run
//	PID START   the supervisor, from before the command may start
//	PID START   the command, where it has no PID namespace, soon after its start
//
// A supervisor holds a lock of the file while it lives. What a driver finds after a
// restart decides: a final status is the end; a supervisor that lives is waited for;
// one that does not has taken the command with it, and then its last word is the end,
// or the sandbox is lost.
//
// It is one file, and one that earlier sandboxes had, since making and removing them is
// a good part of a short command's price. Its name says nothing: the sandbox is who the
// JSON says, and the slots count for that one only.
package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/cgroup"
	"github.com/errand-run/errand/nodes/sandbox/guest"
	"github.com/errand-run/errand/nodes/sandbox/guest/pid"
)

// Name is the driver's name in specs.
const Name = "process"

// Config is what the driver is made of.
type Config struct {
	// Dir holds the sandboxes' files and nothing else; it is made.
	Dir string
	// NodeUUID names the node's parent cgroup, unless CgroupParent does.
	NodeUUID     string
	CgroupParent string
	// CgroupRoot is where cgroups are mounted; empty means cgroup.Root.
	CgroupRoot string
	// Helper is the absolute path of sandbox-init (guest.Install).
	Helper string
	// Fence is the path of the page by which the node's sandboxes are killed (page.Path);
	// empty for a node without a fence. It must be there when a sandbox is started.
	Fence string
	// LogSegmentBytes and LogSegments limit each log; 0 means the defaults of package
	// logs.
	LogSegmentBytes int64
	LogSegments     int
}

// Driver is the process driver. It is safe for concurrent use.
type Driver struct {
	config Config
	// parent is nil where commands run without cgroups.
	parent  *cgroup.Parent
	isolate bool
	boot    string
	poller  *poller
	stock   stock

	mu    sync.Mutex
	boxes map[string]*box

	// tasks are the goroutines beside the poller's.
	tasks     sync.WaitGroup
	closing   chan struct{}
	closeOnce sync.Once
}

// meta is what stands on disk about a sandbox from its creation on.
type meta struct {
	Info sandbox.Info
	// LogPath has the name of when a log was always a directory.
	LogPath string `json:"LogDir"`
	// Command is the first word only, for messages.
	Command string
	Dir     string
	// PidsLimit is the run's own.
	PidsLimit int64
	// Boot is the host's boot in which it was made: processes live no longer.
	Boot string
	// Owned tells that the slots name the sandbox as their owner: all but those that a
	// driver of version 0 has made.
	Owned bool
}

// owner is whose the slots are.
func (m meta) owner() string {
	if !m.Owned {
		return ""
	}
	return m.Info.ID
}

// start is what a failed start of the command is told with.
func (m meta) start() guest.Command {
	return guest.Command{Name: m.Command, WorkingDir: m.Dir, PidsLimit: m.PidsLimit}
}

// box is a sandbox.
type box struct {
	meta meta
	// path is that of its file, and end where the file's next line goes.
	path string
	end  int64
	// group is nil without cgroups.
	group *cgroup.Group
	// spec is nil once the sandbox was started, and after a restart.
	spec *recordv1.Spec
	// unfenced is that of the spec.
	unfenced bool

	mu      sync.Mutex
	started bool
	// supervisor is set once one was started; command, which does without a PID
	// namespace, is known when its supervisor was lost.
	supervisor, command pid.Ref
	exit                sandbox.Exit
	leftover            bool
	// killed tells that Kill killed a supervisor that hung, and all else with it.
	killed      bool
	logComplete bool
	// execs are the commands that Exec has started; each is closed when it has ended.
	execs map[chan struct{}]struct{}

	// ended is closed when exit is known and nothing is left alive; gone when the
	// supervisor is no more.
	ended, gone chan struct{}
}

// New opens the driver and adopts the sandboxes that its directory holds.
func New(config Config) (*Driver, error) {
	d := &Driver{config: config, boxes: map[string]*box{}, closing: make(chan struct{}), isolate: os.Geteuid() == 0}
	d.stock.dir = config.Dir
	if info, err := os.Stat(config.Helper); err != nil || !filepath.IsAbs(config.Helper) || info.Mode()&0o111 == 0 {
		return nil, fmt.Errorf("open process driver: no executable sandbox-init at %q", config.Helper)
	}
	if d.config.CgroupRoot == "" {
		d.config.CgroupRoot = cgroup.Root
	}
	if d.config.CgroupParent == "" {
		d.config.CgroupParent = cgroup.ParentName(config.NodeUUID)
	}
	if d.isolate {
		parent, err := cgroup.Open(d.config.CgroupRoot, d.config.CgroupParent)
		if err != nil && !errors.Is(err, cgroup.ErrUnavailable) {
			return nil, fmt.Errorf("open process driver: %w", err)
		}
		d.parent = parent
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("open process driver: %w", err)
	}
	d.boot = strings.TrimSpace(string(boot))
	if err := os.MkdirAll(config.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open process driver: %w", err)
	}
	if d.poller, err = newPoller(); err != nil {
		return nil, fmt.Errorf("open process driver: %w", err)
	}
	if err := d.adoptAll(); err != nil {
		_ = d.Close()
		return nil, fmt.Errorf("open process driver: %w", err)
	}
	return d, nil
}

// Name returns "process".
func (d *Driver) Name() string { return Name }

// Close lets go of all sandboxes, which go on, and ends every Wait.
func (d *Driver) Close() error {
	d.closeOnce.Do(func() {
		close(d.closing)
		d.poller.close()
		d.tasks.Wait()
		if d.parent != nil {
			// It stays while a sandbox, of this or of another driver of the node, has its group in it.
			_ = d.parent.Remove()
		}
	})
	return nil
}

func (d *Driver) find(id string) (*box, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.boxes[id]
	if x == nil {
		return nil, records.Errorf(records.ClassNotFound, "sandbox %s is not there", id)
	}
	return x, nil
}

func (d *Driver) newBox(m meta) *box {
	x := &box{
		meta: m, ended: make(chan struct{}), gone: make(chan struct{}),
	}
	if d.parent != nil {
		x.group = d.parent.Group(m.Info.ID)
	}
	return x
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// closeOnce closes a channel of x; the caller holds x.mu.
func closeOnce(c chan struct{}) {
	if !closed(c) {
		close(c)
	}
}

// adoptAll reads the directory of an earlier driver.
func (d *Driver) adoptAll() error {
	entries, err := os.ReadDir(d.config.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(d.config.Dir, e.Name())
		d.stock.know(path)
		c, err := readFile(path)
		id := c.meta.Info.ID
		if err != nil || id == "" || d.boxes[id] != nil {
			// A spare one, or its creation was cut, or it is told of elsewhere. That it
			// would be found again after a loss of power is not known.
			if err := os.RemoveAll(path); err != nil {
				return err
			}
			continue
		}
		x := d.newBox(c.meta)
		x.path = path
		d.boxes[id] = x
		if err := d.adopt(x, c); err != nil {
			return fmt.Errorf("adopt sandbox %s: %w", id, err)
		}
	}
	return nil
}

// adopt finds out how far a sandbox has come.
func (d *Driver) adopt(x *box, c content) error {
	if !c.started {
		return nil
	}
	x.started = true
	named, err := x.awaitSupervisor(x.meta.Boot == d.boot)
	if err != nil {
		return err
	}
	if !named {
		d.supervisorGone(x)
		return nil
	}
	x.tryFinal(false)
	fd, err := x.supervisor.Open()
	if errors.Is(err, pid.ErrGone) {
		d.supervisorGone(x)
		return nil
	}
	if err != nil {
		return err
	}
	return d.poller.add(fd, func(bool) { d.supervisorEnded(x) })
}

// awaitSupervisor reads the supervisor's name and returns false if there is none. The
// lock is not asked where there is a name: a process that is being killed lets go of
// its files before the kernel has killed all of its namespace. A supervisor that lives
// but has not written its name yet does so in a moment, or ends.
func (x *box) awaitSupervisor(thisBoot bool) (named bool, err error) {
	deadline := time.Now().Add(5 * time.Second)
	for {
		locked := thisBoot && x.locked()
		c, err := x.read()
		switch {
		case err != nil:
			return false, err
		case !thisBoot:
			return false, nil
		case c.supervisor.PID > 0:
			return true, nil
		case !locked:
			// None will come: the command never ran.
			return false, nil
		case time.Now().After(deadline):
			return false, errors.New("its supervisor does not get on")
		}
		time.Sleep(time.Millisecond)
	}
}

// snapshot returns all sandboxes, by id.
func (d *Driver) snapshot() []*box {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]*box, 0, len(d.boxes))
	for _, x := range d.boxes {
		all = append(all, x)
	}
	slices.SortFunc(all, func(a, b *box) int { return strings.Compare(a.meta.Info.ID, b.meta.Info.ID) })
	return all
}
