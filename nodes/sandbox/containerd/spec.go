package containerd

import (
	"context"
	"fmt"
	"math"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/cgroup"
)

const (
	// Where init, its status file and the seccomp filter are seen from inside. /run is a tmpfs, so nothing
	// of it gets into the sandbox's own layer.
	insideInit   = "/run/errand/init"
	insideStatus = "/run/errand/status"
	insideFilter = "/run/errand/filter"

	// specVersion is the oldest version that says all that we say: some runtimes refuse
	// a newer one.
	specVersion = "1.0.2"
	// cpuPeriodMicros and cpuShares are the kernel's defaults, per core.
	cpuPeriodMicros = 100_000
	cpuSharesCore   = 1024
	cpuSharesMin    = 2
	openFilesMax    = 1 << 20
	openFiles       = 1024
)

// newTemplate makes what all sandboxes share: namespaces of their own for processes,
// network (loopback only), IPC, host name and mounts; no capability, no new
// privileges, the default seccomp profile, masked paths of /proc and /sys.
func newTemplate(namespace string) (*specs.Spec, error) {
	ctx := namespaces.WithNamespace(context.Background(), namespace)
	spec, err := oci.GenerateSpec(ctx, nil, &containers.Container{ID: "template"})
	if err != nil {
		return nil, fmt.Errorf("make the template of sandboxes: %w", err)
	}
	spec.Version = specVersion
	spec.Process.NoNewPrivileges = true
	spec.Process.Capabilities = &specs.LinuxCapabilities{}
	spec.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: openFiles, Hard: openFilesHard()}}
	// containerd and its shims are kept from the OOM killer; what they start must not be.
	score := 0
	spec.Process.OOMScoreAdj = &score
	spec.Linux.Seccomp = seccomp.DefaultProfile(spec)
	return spec, nil
}

// openFilesHard bounds how far a command may raise its limit of open files: by what
// this process has, for a runtime without the privilege to raise it fails.
func openFilesHard() uint64 {
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil || own.Max < openFiles {
		return openFiles
	}
	return min(own.Max, openFilesMax)
}

// blueprint is a sandbox's command with every default filled in.
type blueprint struct {
	args       []string
	env        []string
	account    account
	createdDir string // made by the runtime when it is missing: the image's own
	enteredDir string // entered by init, which says so when it is missing: the run's own
	readOnly   bool
	input      string // what init gives the command of it; empty for none
	limits     cgroup.Limits
}

// limitsOf takes the limits of a run's spec, and checks them.
func limitsOf(spec *recordv1.Spec, pidsDefault int64) (cgroup.Limits, error) {
	limits := cgroup.Limits{CPUMillis: spec.GetCpuMillis(), MemoryBytes: spec.GetMemoryBytes(), Pids: spec.GetPidsLimit()}
	if limits.Pids == 0 {
		limits.Pids = pidsDefault
	}
	if err := limits.Validate(); err != nil {
		return limits, sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "%s", err)
	}
	return limits, nil
}

// ociSpec makes the runtime's spec of a sandbox. It copies what it changes of the
// template, and shares the rest.
func (d *Driver) ociSpec(id, cgroupPath string, b blueprint) (*specs.Spec, error) {
	template, err := d.template()
	if err != nil {
		return nil, err
	}
	spec, process, linux := *template, *template.Process, *template.Linux
	spec.Process, spec.Linux = &process, &linux
	spec.Root = &specs.Root{Path: template.Root.Path, Readonly: b.readOnly}
	spec.Hostname = id[:min(len(id), 12)]

	args := []string{insideInit, "init", "--status", insideStatus}
	if b.enteredDir != "" {
		args = append(args, "--chdir", b.enteredDir)
	}
	if b.input != "" {
		args = append(args, "--input", b.input)
	}
	filter := d.compiled.file()
	if filter != "" {
		args = append(args, "--filter", insideFilter)
	}
	process.Args = append(append(args, "--"), b.args...)
	process.Env = b.env
	process.Cwd = b.createdDir
	process.User = specs.User{UID: b.account.uid, GID: b.account.gid, AdditionalGids: b.account.groups}

	spec.Mounts = append(append(make([]specs.Mount, 0, len(template.Mounts)+3), template.Mounts...),
		specs.Mount{Destination: insideInit, Type: "bind", Source: d.config.Init, Options: []string{"bind", "ro", "nosuid", "nodev"}},
		specs.Mount{Destination: insideStatus, Type: "bind", Source: d.statusPath(id), Options: []string{"bind", "rw", "nosuid", "nodev", "noexec"}},
	)
	if filter != "" {
		// Init installs what the runtime has compiled of the same profile.
		linux.Seccomp = nil
		spec.Mounts = append(spec.Mounts,
			specs.Mount{Destination: insideFilter, Type: "bind", Source: filter, Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"}})
	}
	linux.CgroupsPath = cgroupPath
	linux.Resources = resources(template.Linux.Resources, b.limits)
	if b.input != "" {
		*linux.Resources.Pids.Limit = min(*linux.Resources.Pids.Limit, math.MaxInt64-cgroup.InputPids) + cgroup.InputPids
	}
	return &spec, nil
}

func resources(base *specs.LinuxResources, limits cgroup.Limits) *specs.LinuxResources {
	// The limit is the command's, and init is in the same group.
	pids := min(limits.Pids, math.MaxInt64-cgroup.InitPids) + cgroup.InitPids
	result := &specs.LinuxResources{Devices: base.Devices, Pids: &specs.LinuxPids{Limit: &pids}}
	if limits.CPUMillis > 0 {
		period := uint64(cpuPeriodMicros)
		quota := limits.CPUMillis * cpuPeriodMicros / 1000
		shares := max(uint64(limits.CPUMillis*cpuSharesCore/1000), cpuSharesMin)
		result.CPU = &specs.LinuxCPU{Period: &period, Quota: &quota, Shares: &shares}
	}
	if limits.MemoryBytes > 0 {
		memory := limits.MemoryBytes
		result.Memory = &specs.LinuxMemory{Limit: &memory}
		if swapIsCounted() {
			// The same limit for memory and swap together: no swap.
			result.Memory.Swap = &memory
		}
	}
	return result
}
