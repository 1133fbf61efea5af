package nodes

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/errand-run/errand/actors/run"
	"github.com/errand-run/errand/cluster/records"
)

// Config is what a node is told about itself.
type Config struct {
	// ID is the node's name in the cluster.
	ID   string
	Keys records.Keys
	// UUID is that of a node whose journal is new; it is drawn when empty. A journal
	// that has one keeps it.
	UUID string
	// Address is where its API is reached; Version is that of the binary.
	Address string
	Version string
	// BootID changes with each boot of the machine.
	BootID string
	// LogPath names the path of an attempt's log (package logs), as whoever reads it
	// does.
	LogPath func(run string, attempt int32) string
	// SandboxesMax, CPUMillis and MemoryBytes are what there is to give away.
	SandboxesMax int64
	CPUMillis    int64
	MemoryBytes  int64
	// Drivers are the enabled sandbox drivers, the default one first.
	Drivers []string
	// StartsInFlightMax bounds the sandboxes that are being created and started at
	// one time; 0 means two per core.
	StartsInFlightMax int
	// LightDrivers are those whose creates and starts hardly need the processor: up to
	// LightStartsMax of theirs are under way, beside the StartsInFlightMax of the others.
	LightDrivers []string
	// Session says how the node holds its session; the zero value is solo.
	Session SessionConfig
	// OnlyNode keeps the node from a session while another one has any in the store: two
	// whose routers do not know each other must not share one.
	OnlyNode bool
	// AcceptLostStore lets a node go on whose journal belongs to another store: the
	// records of that are given up and what runs of them is stopped.
	AcceptLostStore bool
	// AcceptLostJournal lets a node go on without a journal although sandboxes of it
	// run: they are stopped.
	AcceptLostJournal bool
}

// SessionConfig says how a node holds its session (protocol.md section 6). A zero
// Lease means solo: nobody else can start anything, so the session has no lease and
// nothing is renewed or fenced.
type SessionConfig struct {
	// Lease is the TTL of the session's lease; Renew is how often it is renewed.
	Lease time.Duration
	Renew time.Duration
	// Margin is how long before the lease's end, counted from before the renewal was
	// sent, the node stops all that it runs; KillBudget is how long that may take.
	Margin     time.Duration
	KillBudget time.Duration
	// Drift bounds how much faster one clock may be than another, as a fraction.
	Drift float64
	// StartMargin is how long before the fence no command is started any more.
	StartMargin time.Duration
	// RestartMax is the TTL of the lease that holds the session while the daemon is
	// restarted on purpose: what runs may go on without one until a margin before its
	// end. 0, or one that is no longer than the lease, gives a restart no more time than
	// any other silence.
	RestartMax time.Duration
}

// DefaultSession is the session of a node among others.
func DefaultSession() SessionConfig {
	return SessionConfig{
		Lease: time.Minute, Renew: 5 * time.Second, Margin: 15 * time.Second,
		KillBudget: 10 * time.Second, Drift: 0.01, StartMargin: 2 * time.Second, RestartMax: 2 * time.Minute,
	}
}

func (c Config) validate() error {
	var faults []error
	if err := records.CheckName(c.ID); err != nil {
		faults = append(faults, fmt.Errorf("node id %q: %w", c.ID, err))
	}
	if c.BootID == "" {
		faults = append(faults, errors.New("boot id: is empty"))
	}
	if c.Keys.Root == "" || c.Keys.Shards <= 0 {
		faults = append(faults, errors.New("keys: root and shards must be set"))
	}
	if c.LogPath == nil {
		faults = append(faults, errors.New("path of logs: nothing names it"))
	}
	if c.SandboxesMax <= 0 {
		faults = append(faults, fmt.Errorf("sandboxes max: %d is not above 0", c.SandboxesMax))
	}
	if c.CPUMillis < 0 || c.MemoryBytes < 0 || c.StartsInFlightMax < 0 {
		faults = append(faults, errors.New("cpu, memory and starts in flight must not be negative"))
	}
	if len(c.Drivers) == 0 {
		faults = append(faults, errors.New("drivers: none is enabled"))
	}
	for i, name := range c.Drivers {
		if slices.Contains(c.Drivers[:i], name) {
			faults = append(faults, fmt.Errorf("drivers: %q is named twice", name))
		}
	}
	faults = append(faults, c.Session.Validate())
	return errors.Join(faults...)
}

// keepAliveMax bounds one call of the lease service.
const keepAliveMax = 4 * time.Second

// Window is how long after its last confirmed renewal was sent a session may still
// run sandboxes; 0 in solo, where there is no end.
func (c SessionConfig) Window() time.Duration {
	if c.Lease <= 0 {
		return 0
	}
	return c.Lease - c.Margin
}

// WindowMax is the longest that a session may run sandboxes without a word, that of a
// planned restart included; 0 in solo.
func (c SessionConfig) WindowMax() time.Duration {
	if c.Lease <= 0 {
		return 0
	}
	return max(c.Lease, c.RestartMax) - c.Margin
}

// LossAfter is how long after a session was seen to be over nothing can be left of what
// ran in it, whatever window its node had.
func (c SessionConfig) LossAfter() time.Duration { return c.loss().After(c.WindowMax()) }

// loss is after what time others give up a run on a node whose session is over.
func (c SessionConfig) loss() run.Loss {
	if c.Lease <= 0 {
		return run.Loss{}
	}
	return run.Loss{Window: c.WindowMax(), KillBudget: c.KillBudget, Drift: c.Drift}
}

// Validate refuses a session that could not stand a single lost renewal, or whose
// sandboxes could outlive what others wait for. How long they wait is not a setting
// but follows from the window, the drift and the kill budget, so that it can not be
// too short.
func (c SessionConfig) Validate() error {
	if c.Lease == 0 {
		return nil
	}
	var faults []error
	if c.Lease < time.Second || c.Renew <= 0 || c.Margin <= 0 || c.StartMargin < 0 {
		faults = append(faults, errors.New("session: lease, renew and margin must be set, and the start margin must not be negative"))
	}
	if need := 3*c.Renew + keepAliveMax; c.Window() < need {
		faults = append(faults, fmt.Errorf("session: lease - margin (%s) must be at least 3 renewals and %s (%s)", c.Window(), keepAliveMax, need))
	}
	if c.KillBudget <= FenceSyncMax {
		faults = append(faults, fmt.Errorf("session: the kill budget (%s) must be above the %s that the journal may take of it", c.KillBudget, FenceSyncMax))
	}
	if c.Drift < 0 || c.Drift > driftMax {
		faults = append(faults, fmt.Errorf("session: the drift (%v) must be between 0 and %v", c.Drift, driftMax))
	}
	if c.RestartMax != 0 && c.RestartMax < restartMin {
		faults = append(faults, fmt.Errorf("session: the time for a restart (%s) must be at least %s, or 0 for none of its own", c.RestartMax, restartMin))
	}
	if c.StartMargin >= c.Window() {
		faults = append(faults, fmt.Errorf("session: the start margin (%s) must be below lease - margin (%s)", c.StartMargin, c.Window()))
	}
	return errors.Join(faults...)
}

// restartMin is the least time that is worth a lease of its own.
const restartMin = time.Minute

// driftMax is a drift that no working clock has.
const driftMax = 0.5
