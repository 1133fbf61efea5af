package boot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/errand-run/errand/api"
	"github.com/errand-run/errand/api/nodelogs"
	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/nodes/fence/page"
	"github.com/errand-run/errand/nodes/inventory"
	"github.com/errand-run/errand/nodes/pool"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/containerd"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images"
	"github.com/errand-run/errand/nodes/sandbox/containerd/private"
	"github.com/errand-run/errand/nodes/sandbox/guest"
	"github.com/errand-run/errand/nodes/sandbox/null"
	"github.com/errand-run/errand/nodes/sandbox/process"
)

// logSegments is in how many files an attempt's log is kept.
const logSegments = 4

// unwindTimeout bounds taking down what a failed start of a stage has left.
const unwindTimeout = 10 * time.Second

// sandboxHost holds the drivers that this node has.
type sandboxHost struct {
	settings settings
	parts    Parts
	log      *zap.Logger
	storage  *nodeStorage
	metrics  *metrics

	pool *pool.Pool
	// inside are the drivers by their names, as they let others into their sandboxes.
	inside map[string]sandbox.Driver
	// drivers are those that are open, the default one first, enabled their names.
	drivers    []sandbox.Driver
	enabled    []string
	containerd *containerd.Driver
	private    *private.Daemon
	// place is where the things of containers are found; nil without the driver.
	place *containerd.Place
}

func newSandboxHost(order *sequence, config settings, parts Parts, storage *nodeStorage, m *metrics) *sandboxHost {
	h := &sandboxHost{settings: config, parts: parts, log: parts.log("sandboxes"), storage: storage, metrics: m}
	order.add(stage{name: "sandbox host", startTimeout: 45 * time.Second, stopTimeout: 30 * time.Second, start: h.start, stop: h.stop})
	return h
}

func (h *sandboxHost) start(ctx context.Context) error {
	err := h.openAll(ctx)
	if err == nil {
		err = h.endFormer(ctx)
	}
	if err != nil {
		patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), unwindTimeout)
		defer cancel()
		return errors.Join(err, h.stop(patient))
	}
	named := map[string]sandbox.Driver{}
	h.inside = map[string]sandbox.Driver{}
	for i, driver := range h.drivers {
		h.inside[driver.Name()] = driver
		if h.parts.LogSink != nil {
			driver = tapped(driver, h.parts.LogSink, nodelogs.New(h.storage.logDir), h.log.Named("sink"))
			h.drivers[i] = driver
		}
		named[driver.Name()] = driver
		h.enabled = append(h.enabled, driver.Name())
	}
	h.pool = pool.New(named)
	return nil
}

// openAll opens the drivers of the configuration and lets the application choose.
func (h *sandboxHost) openAll(ctx context.Context) error {
	err := private.EndLost(ctx, h.containerdDir(), h.settings.AcceptLossOf == LossOfJournal, h.log.Named("containerd"))
	if err != nil {
		return err
	}
	names, err := h.driverNames(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		driver, err := h.open(ctx, name)
		if err != nil {
			return fmt.Errorf("%s driver: %w", name, err)
		}
		h.drivers = append(h.drivers, driver)
	}
	if h.parts.Drivers == nil {
		return nil
	}
	chosen, err := h.parts.Drivers(ctx, slices.Clone(h.drivers))
	if err != nil {
		return fmt.Errorf("drivers of the application: %w", err)
	}
	h.drivers = slices.DeleteFunc(slices.Clone(chosen), func(d sandbox.Driver) bool { return d == nil })
	return checkDrivers(chosen)
}

// checkDrivers refuses what runs could not name.
func checkDrivers(drivers []sandbox.Driver) error {
	if len(drivers) == 0 {
		return errors.New("drivers of the application: there is none")
	}
	seen := map[string]bool{}
	for _, driver := range drivers {
		if driver == nil {
			return errors.New("drivers of the application: one is nil")
		}
		name := driver.Name()
		if err := records.CheckName(name); err != nil {
			return fmt.Errorf("drivers of the application: %q: %w", name, err)
		}
		if seen[name] {
			return fmt.Errorf("drivers of the application: two are named %s", name)
		}
		seen[name] = true
	}
	return nil
}

// driverNames resolves "auto": containerd where there is root and a runtime; with
// Dev, processes and null too. Nothing at all is an error that says what to do.
func (h *sandboxHost) driverNames(ctx context.Context) ([]string, error) {
	if !h.settings.driversGiven && h.parts.Drivers != nil {
		return nil, nil
	}
	if !slices.Equal(h.settings.Drivers, []string{DriversAuto}) {
		return h.settings.Drivers, nil
	}
	var names []string
	missing := h.containerdMissing(ctx)
	if missing == "" {
		names = append(names, DriverContainerd)
	} else {
		h.log.Info("the containerd driver is not enabled", zap.String("because", missing))
	}
	if h.settings.Dev {
		names = append(names, DriverProcess, DriverNull)
	}
	if len(names) == 0 && h.parts.Drivers == nil {
		return nil, fmt.Errorf("no sandbox driver: %s; name one with --drivers, or try --dev", missing)
	}
	return names, nil
}

// containerdMissing says why there can be no containers here, or nothing.
func (h *sandboxHost) containerdMissing(ctx context.Context) string {
	if os.Geteuid() != 0 {
		return "containers need root"
	}
	if _, ok := private.Detect(ctx); ok && h.settings.Containerd == ContainerdAuto {
		return ""
	}
	if filepath.IsAbs(h.settings.Containerd) {
		return ""
	}
	for _, binary := range []string{"containerd", "runc"} {
		if _, err := exec.LookPath(binary); err != nil {
			return binary + " is not installed (apt-get install containerd runc)"
		}
	}
	return ""
}

func (h *sandboxHost) open(ctx context.Context, name string) (sandbox.Driver, error) {
	dir := filepath.Join(h.settings.DataDir, name)
	if name == DriverNull {
		return null.New(dir)
	}
	helper, err := h.installHelper()
	if err != nil {
		return nil, err
	}
	if name == DriverProcess {
		return process.New(process.Config{
			Dir: dir, NodeUUID: h.storage.uuid, Helper: helper, Fence: h.fence(),
			LogSegmentBytes: h.settings.LogBytes / logSegments, LogSegments: logSegments,
		})
	}
	address, err := h.containerdAddress(ctx)
	if err != nil {
		return nil, err
	}
	pulling, err := h.imageConfig()
	if err != nil {
		return nil, err
	}
	place := &containerd.Place{Address: address, Namespace: h.settings.ContainerdNamespace}
	if h.private != nil {
		place.StateDir, place.RootDir = h.private.StateDir(), h.private.RootDir()
	}
	driver, err := containerd.New(ctx, containerd.Config{
		Address: address, StateDir: place.StateDir, RootDir: place.RootDir, Namespace: place.Namespace, NodeUUID: h.storage.uuid,
		Dir: filepath.Join(dir, "sandboxes"), Init: helper, Fence: h.fence(),
		LogSegmentBytes: h.settings.LogBytes / logSegments, LogSegments: logSegments, Log: h.log.Named(name),
		Images: pulling, Bounds: images.Bounds{AgeMax: h.settings.ImageMaxAge, BytesMax: h.settings.ImageMaxBytes},
	})
	if err != nil {
		return nil, err
	}
	h.containerd, h.place = driver, place
	return driver, nil
}

// containerdDir is where a containerd of the node's own lives.
func (h *sandboxHost) containerdDir() string { return filepath.Join(h.settings.DataDir, "containerd") }

// fence is where the node's is; a node that is alone has none.
func (h *sandboxHost) fence() string {
	if h.settings.solo() {
		return ""
	}
	return page.Path(h.settings.RuntimeDir, h.storage.uuid)
}

// installHelper puts sandbox-init where sandboxes find it, under a name that holds
// its content's hash: sandboxes of an earlier version keep theirs.
func (h *sandboxHost) installHelper() (string, error) {
	dir := filepath.Join(h.settings.DataDir, "bin")
	if h.settings.SandboxInit != "" {
		if err := guest.Verify(h.settings.SandboxInit); err != nil {
			return "", err
		}
		return guest.InstallFile(dir, h.settings.SandboxInit)
	}
	return guest.Install(dir)
}

// containerdAddress is where containerd answers. A private one that an earlier
// daemon left with sandboxes in it is taken up again, whatever else runs by now.
func (h *sandboxHost) containerdAddress(ctx context.Context) (string, error) {
	dir := h.containerdDir()
	switch h.settings.Containerd {
	case ContainerdAuto:
		if address, ok := private.Detect(ctx); ok && !private.Left(dir) {
			return address, nil
		}
	case ContainerdPrivate:
	default:
		return strings.TrimPrefix(h.settings.Containerd, "unix://"), nil
	}
	err := housesContainerd(h.settings.DataDir)
	if err != nil {
		return "", err
	}
	h.private, err = private.Start(ctx, private.Config{Dir: dir, Log: h.log.Named("containerd")})
	if err != nil {
		return "", err
	}
	return h.private.Address(), nil
}

// Exec implements api.Sandboxes.
func (h *sandboxHost) Exec(ctx context.Context, driver, id string, exec sandbox.Exec) (sandbox.ExecEnd, error) {
	inside, ok := h.inside[driver].(sandbox.Execs)
	if !ok {
		return sandbox.ExecEnd{}, records.Errorf(records.ClassInvalid, "the %s driver runs nothing beside a run's command", driver)
	}
	return inside.Exec(ctx, id, exec)
}

// RootOf implements api.Sandboxes.
func (h *sandboxHost) RootOf(ctx context.Context, driver, id string) (string, error) {
	inside, ok := h.inside[driver].(sandbox.Roots)
	if !ok {
		return "", records.Errorf(records.ClassInvalid, "the %s driver shows no files of its sandboxes", driver)
	}
	return inside.RootOf(ctx, id)
}

// OpenInput implements api.Sandboxes.
func (h *sandboxHost) OpenInput(ctx context.Context, driver, id string) (sandbox.Input, error) {
	inside, ok := h.inside[driver].(sandbox.Inputs)
	if !ok {
		return nil, records.Errorf(records.ClassInvalid, "the %s driver gives commands no input", driver)
	}
	return inside.OpenInput(ctx, id)
}

// inventory finds what the sandboxes have on the machine.
func (h *sandboxHost) inventory() api.Inventory {
	data, err := filepath.Abs(h.settings.DataDir)
	if err != nil {
		return nil
	}
	return inventory.Node{Data: data, UUID: h.storage.uuid, Containerd: h.place}
}

// stop releases the drivers. Sandboxes go on; a private containerd goes with the
// daemon only if it has none left.
func (h *sandboxHost) stop(ctx context.Context) error {
	var err error
	if h.pool != nil {
		err = h.pool.Close(ctx)
	}
	idle := true
	if h.containerd != nil && h.private != nil {
		var askErr error
		if idle, askErr = h.containerd.Idle(ctx); askErr != nil {
			h.log.Warn("containerd can not say whether containers are left, so it goes on", zap.Error(askErr))
			idle = false
		}
	}
	for _, driver := range slices.Backward(h.drivers) {
		err = errors.Join(err, driver.Close())
	}
	if h.private != nil {
		end := h.private.Leave
		if idle {
			end = h.private.Stop
		}
		err = errors.Join(err, end(ctx))
	}
	h.pool, h.drivers, h.enabled, h.containerd, h.private, h.place = nil, nil, nil, nil, nil, nil
	return err
}
