package boot

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/errand-run/errand/cluster/records"
	"github.com/errand-run/errand/cluster/store"
	"github.com/errand-run/errand/nodes"
)

// The drivers that Config.Drivers may name, in the order in which "auto" prefers
// them.
const (
	DriverContainerd = "containerd"
	DriverProcess    = "process"
	DriverNull       = "null"
	// DriversAuto stands for what the machine offers.
	DriversAuto = "auto"
)

// Choices of Config.Containerd beside the path of a socket.
const (
	ContainerdAuto    = "auto"
	ContainerdPrivate = "private"
)

// What Config.AcceptLossOf may name. With LossOfStore the node goes on in a store
// that is not its journal's; with LossOfJournal it takes its name up again in a
// store that knows it although its journal is gone. Either way what still runs of
// before is stopped, for nobody could tell of its end.
const (
	LossOfStore   = "store"
	LossOfJournal = "journal"
)

// Bounds and defaults of the configuration.
const (
	ListenDefault       = "127.0.0.1:7400"
	DataDirDefault      = "/var/lib/errand"
	ShardsMax           = 4096
	SandboxesMaxDefault = 256
	SandboxesMaxBound   = 100_000
	// LogBytesDefault is the most that is kept of one attempt's log.
	LogBytesDefault = 64 << 20
	LogBytesMin     = 64 << 10
	LogBytesMax     = 64 << 30
	// ImagePullsDefault is how many images are pulled at a time.
	ImagePullsDefault = 3
	ImagePullsMax     = 64
	// ImageMaxAgeDefault is how long a pulled image is kept that nothing uses.
	ImageMaxAgeDefault = 30 * 24 * time.Hour
)

// ListenNone as Config.Listen means a node without an address: only this process
// reaches it, by Instance.Client.
const ListenNone = "none"

// Config is everything that one node is told. The zero value of a field stands
// for its default; Complete fills the defaults in and refuses what can not be.
// Errors name a field as the flag of errand-node that sets it.
type Config struct {
	// Name is the node's identity in the cluster; the host name by default.
	Name string
	// DataDir holds everything of this node: store, journal, sandboxes, logs.
	DataDir string
	// RuntimeDir is where this node notes how far its journal has come, apart from
	// DataDir: a folder in memory that outlives the daemon. Nobody else may write to
	// it. /run/errand by default, or one of the user's own if that is not root.
	RuntimeDir string
	// Listen is the API's address, host:port, or ListenNone. Loopback only until nodes
	// have certificates.
	Listen string
	// Dev drops the token and enables the process and null drivers.
	Dev bool
	// Drivers are the sandbox drivers to enable, the default one first, or "auto".
	Drivers []string
	// Containerd is "auto" (a running one, else a private one), "private", or the
	// path of a socket.
	Containerd string
	// ContainerdNamespace keeps what is ours apart inside a shared containerd.
	ContainerdNamespace string
	// RegistryAuth is a docker config file with credentials for registries; empty means
	// none: whatever lies in somebody's home is not used unasked.
	RegistryAuth string
	// RegistryCA is a PEM file of authorities that sign registries beside the system's.
	RegistryCA string
	// RegistryPlain lists registries, as host or host:port, that are spoken with
	// unencrypted; those on loopback always are.
	RegistryPlain []string
	// ImagePulls is how many images are pulled at a time.
	ImagePulls int32
	// ImageMaxAge is how long a pulled image is kept that nothing uses, ImageMaxBytes
	// what pulled images may take: 30 days and a quarter of their disk by default. A
	// negative one is no bound.
	ImageMaxAge   time.Duration
	ImageMaxBytes int64
	// EtcdEndpoints is an outside etcd; empty means the embedded one.
	EtcdEndpoints []string
	// EtcdCA, EtcdCert and EtcdKey are PEM files for mTLS to an outside etcd.
	EtcdCA, EtcdCert, EtcdKey string
	// Session says how a node with an outside etcd holds its session; nodes.DefaultSession
	// fills what is zero. With the embedded etcd nothing of it applies.
	Session nodes.SessionConfig
	// GuardBinary is the path of errand-node, which is started as a guard when a node
	// needs one and none is at work. Empty means that somebody else starts it.
	GuardBinary string
	// StoreMaxBytes is the most that the file of the embedded store may grow to, 8 GiB by
	// default. The last tenth of it is for the end of what runs.
	StoreMaxBytes int64
	// EtcdPrefix is where all keys of the cluster live.
	EtcdPrefix string
	// Shards is fixed when the cluster is created.
	Shards int32
	// SandboxesMax is the most sandboxes at a time.
	SandboxesMax int64
	// CPUMillis and MemoryBytes are what runs may reserve; the machine's by default.
	CPUMillis, MemoryBytes int64
	// LogBytes is the most that is kept of one attempt's log.
	LogBytes int64
	// SandboxInit is the path of the helper binary, which the containerd and process
	// drivers need: cmd/sandbox-init, built with CGO_ENABLED=0. Empty means the embedded
	// one, which only a build of this repository by make has.
	SandboxInit string
	// AcceptLossOf is what the operator gives up for good, for one start: LossOfStore,
	// LossOfJournal, or nothing.
	AcceptLossOf string
}

// Complete returns the configuration with every default filled in, or an error
// that names each field that can not be as it is.
func (c Config) Complete() (Config, error) {
	c.setDefaults()
	var problems []error
	refuse := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if err := records.CheckName(c.Name); err != nil {
		refuse("name %q: %w", c.Name, err)
	}
	if err := checkListen(c.Listen); err != nil {
		refuse("listen %q: %w", c.Listen, err)
	}
	if abs, err := filepath.Abs(c.DataDir); err == nil {
		c.DataDir = abs
	} else {
		refuse("data %q: %w", c.DataDir, err)
	}
	if c.Containerd == ContainerdPrivate && (slices.Contains(c.Drivers, DriverContainerd) || slices.Contains(c.Drivers, DriversAuto)) {
		if err := housesContainerd(c.DataDir); err != nil {
			refuse("%w", err)
		}
	}
	// Guard and sandboxes stand elsewhere.
	if abs, err := filepath.Abs(c.RuntimeDir); err == nil {
		c.RuntimeDir = abs
	} else {
		refuse("runtime-dir %q: %w", c.RuntimeDir, err)
	}
	for i, driver := range c.Drivers {
		known := driver == DriverContainerd || driver == DriverProcess || driver == DriverNull
		switch {
		case driver == DriversAuto && len(c.Drivers) == 1, known && !slices.Contains(c.Drivers[:i], driver):
		case known:
			refuse("drivers: %s is named twice", driver)
		default:
			refuse("drivers: %q is none of containerd, process and null, nor auto alone", driver)
		}
	}
	if c.Shards < 1 || c.Shards > ShardsMax {
		refuse("shards %d: must be 1 to %d", c.Shards, ShardsMax)
	}
	if c.SandboxesMax < 1 || c.SandboxesMax > SandboxesMaxBound {
		refuse("sandboxes-max %d: must be 1 to %d", c.SandboxesMax, SandboxesMaxBound)
	}
	if c.CPUMillis < 1 || c.MemoryBytes < 1 {
		refuse("cpu and memory: must be above 0")
	}
	if c.LogBytes < LogBytesMin || c.LogBytes > LogBytesMax {
		refuse("log-bytes %d: must be %d to %d", c.LogBytes, LogBytesMin, int64(LogBytesMax))
	}
	if c.ImagePulls < 1 || c.ImagePulls > ImagePullsMax {
		refuse("image-pulls %d: must be 1 to %d", c.ImagePulls, ImagePullsMax)
	}
	for _, host := range c.RegistryPlain {
		if host == "" || strings.ContainsAny(host, "/@ ") {
			refuse("registry-plain %q: give a host, or host:port, as in registry.lan:5000", host)
		}
	}
	if !strings.HasPrefix(c.EtcdPrefix, "/") || !strings.HasSuffix(c.EtcdPrefix, "/") {
		refuse("etcd-prefix %q: must begin and end with a slash", c.EtcdPrefix)
	}
	for _, endpoint := range c.EtcdEndpoints {
		if err := checkEndpoint(endpoint); err != nil {
			refuse("etcd-endpoints %q: %w", endpoint, err)
		}
	}
	if (c.EtcdCert == "") != (c.EtcdKey == "") {
		refuse("etcd-cert and etcd-key: both or neither")
	}
	if len(c.EtcdEndpoints) == 0 && (c.EtcdCert != "" || c.EtcdCA != "") {
		refuse("etcd-cert, etcd-key, etcd-ca: only with etcd-endpoints")
	}
	if len(c.EtcdEndpoints) > 0 && c.StoreMaxBytes != 0 {
		refuse("store-max-bytes: only without etcd-endpoints; an etcd of your own has --quota-backend-bytes")
	}
	if bytes := c.StoreMaxBytes; len(c.EtcdEndpoints) == 0 && (bytes < store.QuotaMin || bytes > store.QuotaMax) {
		refuse("store-max-bytes %d: must be %d to %d", bytes, store.QuotaMin, int64(store.QuotaMax))
	}
	if err := c.Session.Validate(); err != nil {
		refuse("%w", err)
	}
	if loss := c.AcceptLossOf; loss != "" && loss != LossOfStore && loss != LossOfJournal {
		refuse("accept-loss-of %q: must be store or journal", loss)
	}
	return c, errors.Join(problems...)
}

// housesContainerd refuses a data directory in which a containerd of the node's own could
// make no containers, because of a character in its name.
func housesContainerd(dataDir string) error {
	for _, r := range dataDir {
		why := ""
		switch {
		case strings.ContainsRune(`,:\`, r):
			why = "which parts the options of an overlayfs mount, so no container could be made there"
		case strings.ContainsRune("%#?", r) || unicode.IsControl(r):
			why = "which means something else in the address of containerd's socket"
		default:
			continue
		}
		return fmt.Errorf("data %q: it has the character %s, %s: name another directory, or with --containerd one that runs already", dataDir, strconv.QuoteRune(r), why)
	}
	return nil
}

func (c *Config) setDefaults() {
	setDefault(&c.Name, hostName())
	setDefault(&c.DataDir, DataDirDefault)
	setDefault(&c.RuntimeDir, runtimeDir(os.Geteuid()))
	setDefault(&c.Listen, ListenDefault)
	setDefault(&c.Containerd, ContainerdAuto)
	setDefault(&c.ContainerdNamespace, "errand")
	setDefault(&c.EtcdPrefix, records.RootDefault)
	if len(c.EtcdEndpoints) == 0 {
		setDefault(&c.StoreMaxBytes, store.QuotaDefault)
	}
	standard := nodes.DefaultSession()
	setDefault(&c.Session.Lease, standard.Lease)
	setDefault(&c.Session.Renew, standard.Renew)
	setDefault(&c.Session.Margin, standard.Margin)
	setDefault(&c.Session.KillBudget, standard.KillBudget)
	setDefault(&c.Session.Drift, standard.Drift)
	setDefault(&c.Session.StartMargin, standard.StartMargin)
	setDefault(&c.Session.RestartMax, standard.RestartMax)
	setDefault(&c.Shards, records.ShardsDefault)
	setDefault(&c.SandboxesMax, SandboxesMaxDefault)
	setDefault(&c.CPUMillis, int64(runtime.NumCPU())*1000)
	setDefault(&c.MemoryBytes, machineMemory())
	setDefault(&c.LogBytes, LogBytesDefault)
	setDefault(&c.ImagePulls, ImagePullsDefault)
	setDefault(&c.ImageMaxAge, ImageMaxAgeDefault)
	if len(c.Drivers) == 0 {
		c.Drivers = []string{DriversAuto}
	}
}

// runtimeDir is where a user keeps what need not outlive the boot.
func runtimeDir(uid int) string {
	own := os.Getenv("XDG_RUNTIME_DIR")
	switch {
	case uid == 0:
		return "/run/errand"
	case filepath.IsAbs(own):
		return filepath.Join(own, "errand")
	default:
		return filepath.Join(os.TempDir(), "errand-"+strconv.Itoa(uid))
	}
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// checkListen refuses what would serve an unencrypted API to a network.
func checkListen(address string) error {
	if address == ListenNone {
		return nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("give a host and a port, as in %s", ListenDefault)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("the port must be 0 to 65535, is %q", port)
	}
	if host == "localhost" {
		return nil
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return errors.New("only a loopback address (127.0.0.1, ::1, localhost) is served, since the API is not encrypted; reach it from elsewhere through ssh -L")
	}
	return nil
}

// checkEndpoint refuses what is no address of an etcd.
func checkEndpoint(endpoint string) error {
	scheme, address, hasScheme := strings.Cut(endpoint, "://")
	if !hasScheme {
		scheme, address = "http", endpoint
	}
	if scheme != "http" && scheme != "https" {
		return fmt.Errorf("the scheme must be http or https, is %q", scheme)
	}
	host, port, err := net.SplitHostPort(strings.TrimSuffix(address, "/"))
	if err != nil || host == "" || strings.ContainsAny(host, "/@ ") {
		return errors.New("give host:port or a URL, as in 10.0.0.5:2379 or https://etcd-1:2379")
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
		return fmt.Errorf("the port must be 1 to 65535, is %q", port)
	}
	return nil
}

// hostName is the machine's name in the form of a node's: lower case, anything
// else than a letter or digit as a single hyphen.
func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		return "node"
	}
	return nameOf(name)
}

func nameOf(host string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(host) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			b.WriteRune(r)
		} else if text := b.String(); text != "" && !strings.HasSuffix(text, "-") {
			b.WriteByte('-')
		}
	}
	name := b.String()
	name = strings.Trim(name[:min(len(name), records.NameBytesMax)], "-")
	if name == "" {
		return "node"
	}
	return name
}
