package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/status"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/cgroup"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images"
	"github.com/errand-run/errand/nodes/sandbox/containerd/quiet"
)

// Name is the driver's word in a run's spec.
const Name = "containerd"

// The defaults of Config.
const (
	NamespaceDefault = "errand"
	RuntimeDefault   = "io.containerd.runc.v2"
	StateDirDefault  = "/run/containerd"
	PidsLimitDefault = 4096
)

// Deadlines of single operations. They are longer than the operations ever take on a
// machine that works, and end the ones that hang.
const (
	// createMax bounds one step of preparing: a database write, a snapshot.
	createMax = 30 * time.Second
	// taskMax bounds NewTask and Start: the shim, runc and the kernel at work.
	taskMax = 60 * time.Second
	// askMax bounds a question to one task, whose shim may hang.
	askMax = 5 * time.Second
	// turnsPerCore is how many sandboxes are made at a time after their pulls, and how many
	// commands are being started beside theirs.
	turnsPerCore = 2
	// dialMax bounds the pause between two tries to reach containerd.
	dialMax = time.Second
)

// Config says which containerd to use, and how.
type Config struct {
	// Address is containerd's socket.
	Address string
	// StateDir is containerd's own directory of what runs. Default StateDirDefault.
	StateDir string
	// RootDir is its own directory of what stays, if it is the node's alone.
	RootDir string
	// Namespace keeps ours apart from others' containers and images. Default
	// NamespaceDefault.
	Namespace string
	// NodeUUID marks what is ours. Required.
	NodeUUID string
	// Dir holds a directory for each sandbox. It must outlive the daemon. Required.
	Dir string
	// Init is the path of the sandbox-init binary (package guest). Required.
	Init string
	// Snapshotter. Default images.SnapshotterDefault.
	Snapshotter string
	// Runtime is containerd's word for it. Default RuntimeDefault.
	Runtime string
	// PidsLimit is for runs that set none. Default PidsLimitDefault.
	PidsLimit int64
	// Fence is the path of the page by which the node's sandboxes are killed (page.Path);
	// empty for a node without a fence. It must be there when a sandbox is created.
	Fence string
	// LogSegmentBytes and LogSegments bound a sandbox's log; 0 means the defaults of
	// package logs.
	LogSegmentBytes int64
	LogSegments     int
	// Images says how images are pulled and kept; its Snapshotter and Log are those above.
	Images images.Config
	// Bounds are those of the images that were pulled.
	Bounds images.Bounds
	// Log hears of what an operator must know. Default: nobody.
	Log *zap.Logger
}

// Driver runs sandboxes in containerd. It implements sandbox.Driver.
type Driver struct {
	config   Config
	client   *client.Client
	store    *images.Store
	snapshot snapshots.Snapshotter
	leases   leases.Manager
	parent   *cgroup.Parent
	log      *zap.Logger

	template func() (*specs.Spec, error)
	compiled compiled
	users    sync.Map // userKey -> account, usersKnown of them at most
	// usersKnown counts what was put into users since it was last empty.
	usersKnown atomic.Int64
	// turns bound the creations that go on after a pull.
	turns chan struct{}
	// execs bound the commands that are being started beside others.
	execs  *execTurns
	exits  sync.Map // sandbox id -> sandbox.Exit, once it was judged
	killed sync.Map // sandbox id -> nothing, once Kill found processes to kill

	open  context.Context // ends with Close, and every Wait with it
	close context.CancelFunc
	later sync.WaitGroup // removals that go on in the background
}

var (
	_ sandbox.Driver         = (*Driver)(nil)
	_ sandbox.CreatesTelling = (*Driver)(nil)
	_ sandbox.Pulls          = (*images.Store)(nil)
)

// New returns a driver for a containerd that answers. The context bounds the wait for
// its first answer.
func New(ctx context.Context, config Config) (*Driver, error) {
	if config.Address == "" || config.NodeUUID == "" || config.Init == "" || config.Dir == "" {
		return nil, errors.New("containerd driver: address, node uuid, directory and init are required")
	}
	config = withDefaults(config)
	var err error
	if config.Dir, err = filepath.Abs(config.Dir); err != nil {
		return nil, fmt.Errorf("containerd driver: %w", err)
	}
	if _, err := os.Stat(config.Init); err != nil {
		return nil, fmt.Errorf("containerd driver: sandbox-init: %w", err)
	}
	if err := os.MkdirAll(config.Dir, 0o711); err != nil {
		return nil, fmt.Errorf("containerd driver: %w", err)
	}
	if err := clearFilters(config.Dir); err != nil {
		return nil, fmt.Errorf("containerd driver: %w", err)
	}
	if err := finishRemovals(config.Dir); err != nil {
		return nil, fmt.Errorf("containerd driver: %w", err)
	}
	parent, err := cgroup.Open(cgroup.Root, cgroup.ParentName(config.NodeUUID))
	if err != nil {
		return nil, fmt.Errorf("containerd driver: %w", err)
	}
	c, err := client.New(config.Address, client.WithDefaultNamespace(config.Namespace), client.WithTimeout(dialMax),
		client.WithExtraDialOpts([]grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: dialMax},
			MinConnectTimeout: dialMax,
		})}))
	if err != nil {
		return nil, fmt.Errorf("containerd driver: %w", err)
	}
	d := &Driver{
		config: config, client: c, parent: parent, log: config.Log,
		store:    images.New(c, config.Images),
		snapshot: c.SnapshotService(config.Snapshotter), leases: c.LeasesService(),
		turns:    make(chan struct{}, turnsPerCore*runtime.GOMAXPROCS(0)),
		execs:    newExecTurns(turnsPerCore * runtime.GOMAXPROCS(0)),
		template: sync.OnceValues(func() (*specs.Spec, error) { return newTemplate(config.Namespace) }),
	}
	d.open, d.close = context.WithCancel(quiet.Context(context.Background()))
	if err := d.greet(quiet.Context(ctx)); err != nil {
		d.close()
		d.store.Close()
		_ = c.Close()
		return nil, err
	}
	d.later.Go(func() { d.store.Keep(d.open, config.Bounds) })
	return d, nil
}

func withDefaults(config Config) Config {
	if config.Namespace == "" {
		config.Namespace = NamespaceDefault
	}
	if config.Snapshotter == "" {
		config.Snapshotter = images.SnapshotterDefault
	}
	if config.Runtime == "" {
		config.Runtime = RuntimeDefault
	}
	if config.StateDir == "" {
		config.StateDir = StateDirDefault
	}
	if config.PidsLimit <= 0 {
		config.PidsLimit = PidsLimitDefault
	}
	if config.Log == nil {
		config.Log = zap.NewNop()
	}
	config.Images.Snapshotter, config.Images.Log = config.Snapshotter, config.Log
	return config
}

// greet makes sure that containerd answers, that our namespace exists and that the
// snapshotter is one that it has.
func (d *Driver) greet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, createMax)
	defer cancel()
	if _, err := d.client.Version(ctx); err != nil {
		return records.Errorf(classOf(err), "containerd at %s does not answer: %s (is it running? --containerd names another socket, or private)", d.config.Address, unanswered(d.config.Address, err))
	}
	err := d.client.NamespaceService().Create(ctx, d.config.Namespace, nil)
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return records.Errorf(classOf(err), "containerd namespace %s: %s", d.config.Namespace, status.Convert(err).Message())
	}
	if _, err := d.client.TaskService().List(ctx, &tasks.ListTasksRequest{}); err != nil {
		return records.Errorf(classOf(err), "containerd at %s can run nothing: %s", d.config.Address, status.Convert(err).Message())
	}
	if _, err := d.snapshot.Stat(ctx, "errand-snapshotter-probe"); err != nil && !errdefs.IsNotFound(err) {
		return records.Errorf(classOf(err), "containerd's snapshotter %s: %s", d.config.Snapshotter, status.Convert(err).Message())
	}
	return nil
}

// Name returns the driver's word.
func (d *Driver) Name() string { return Name }

// Images returns the images that sandboxes can be made of.
func (d *Driver) Images() *images.Store { return d.store }

// Idle tells whether no sandbox is left, which is when a private containerd may be
// stopped with the daemon.
func (d *Driver) Idle(ctx context.Context) (bool, error) {
	ctx = quiet.Context(ctx)
	found, err := d.List(ctx)
	found = slices.DeleteFunc(found, func(info sandbox.Info) bool { return info.Trace })
	return len(found) == 0, err
}

// Close releases the connection. Sandboxes go on.
func (d *Driver) Close() error {
	d.close()
	d.store.Close()
	err := d.client.Close()
	d.later.Wait()
	removeParents(d.parent.Name())
	if err != nil {
		return fmt.Errorf("close the containerd driver: %w", err)
	}
	return nil
}

// own returns a context that the caller's cancellation does not reach, with a
// deadline of its own: what has begun at the runtime is not left half-done.
func own(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), limit)
}

// idForm is the form of a sandbox's id (records.SandboxID); nothing else becomes part
// of a path.
var idForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,75}$`)

func checkID(id string) error {
	if !idForm.MatchString(id) {
		return records.Errorf(records.ClassInvalid, "%.80q is not a sandbox id", id)
	}
	return nil
}
