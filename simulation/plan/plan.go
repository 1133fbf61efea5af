// Package plan is what a simulated world is told before it begins: its options, the
// faults that will befall it and the calls that its clients will make, each with
// its moment.
//
// Nothing is rolled on the way. A plan is drawn from a seed in one go and is plain
// data, so that it can be printed, cut down piece by piece until only what matters
// is left, kept as a file, and carried out again exactly. What a world draws while
// it runs, such as latencies, comes from named streams of the same seed.
package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Version is that of the form of a plan file.
const Version = 1

// Duration is a time.Duration that is written as text, "1m30s".
type Duration time.Duration

// D returns the duration as the standard library's.
func (d Duration) D() time.Duration { return time.Duration(d) }

// String returns the duration as text.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes the duration as text.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a duration from text.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("duration %q: %w", text, err)
	}
	*d = Duration(parsed)
	return nil
}

// Plan is all that a world is told.
type Plan struct {
	Version int    `json:"version"`
	Seed    uint64 `json:"seed"`
	// Note says what the plan is about, for people.
	Note     string  `json:"note,omitempty"`
	Options  Options `json:"options"`
	Faults   []Fault `json:"faults"`
	Workload []Call  `json:"workload"`
}

// Options are the traits of a world.
type Options struct {
	// Nodes is how many machines there are: n1, n2 and so on.
	Nodes int `json:"nodes"`
	// Solo is a single node with a session that never ends.
	Solo bool `json:"solo,omitempty"`
	// Members is how many members the store has.
	Members int `json:"members"`
	// Flights is how many flights of transactions each node may have under way; 0 sends
	// every transaction by itself. OpsMax is how many operations the store takes in one;
	// 0 is as many as by default.
	Flights int   `json:"flights,omitempty"`
	OpsMax  int   `json:"ops_max,omitempty"`
	Shards  int32 `json:"shards"`
	// SandboxesMax is how many sandboxes a node takes at one time.
	SandboxesMax int64  `json:"sandboxes_max"`
	Policy       Policy `json:"policy"`
	// Length is how long the faults and the workload go on.
	Length Duration `json:"length"`
	// Converge is how long the healed core then has until nothing may be pending.
	Converge Duration `json:"converge"`
	// Probes is how many nodes of the core are asked for one more run then.
	Probes int `json:"probes,omitempty"`
	// Classes are the classes of faults that are on, in order; for people.
	Classes []Class `json:"classes,omitempty"`
	Latency Latency `json:"latency"`
	Session Session `json:"session"`
}

// Latency is how long things take when nothing is wrong: each is drawn between its
// half and its double.
type Latency struct {
	Network Duration `json:"network"`
	Store   Duration `json:"store"`
	Disk    Duration `json:"disk"`
	Create  Duration `json:"create"`
	Start   Duration `json:"start"`
	Kill    Duration `json:"kill"`
}

// Session is how the nodes hold their sessions; see nodes.SessionConfig.
type Session struct {
	Lease       Duration `json:"lease"`
	Renew       Duration `json:"renew"`
	Margin      Duration `json:"margin"`
	KillBudget  Duration `json:"kill_budget"`
	Drift       float64  `json:"drift"`
	StartMargin Duration `json:"start_margin"`
	// RestartMax is absent from plans of before there were planned restarts.
	RestartMax Duration `json:"restart_max,omitempty"`
}

// The policies: which of the turns that could run is run next.
const (
	// PolicyFIFO takes the oldest.
	PolicyFIFO = "fifo"
	// PolicyUniform takes any.
	PolicyUniform = "uniform"
	// PolicyBiased gives each actor a priority; at a few points the first falls below
	// all others.
	PolicyBiased = "biased"
	// PolicyStarve takes the turns of one node only when no other has any.
	PolicyStarve = "starve"
)

// Policy says how turns are picked.
type Policy struct {
	Kind string `json:"kind"`
	// Starved is the node of PolicyStarve.
	Starved string `json:"starved,omitempty"`
	// Every is how many turns pass, on average, between two such points of
	// PolicyBiased.
	Every uint64 `json:"every,omitempty"`
}

// The verbs of a Call.
const (
	VerbSubmit = "submit"
	VerbCancel = "cancel"
	VerbGet    = "get"
	// VerbDelete deletes a run that has ended, as retention does.
	VerbDelete = "delete"
	// VerbContend hands transactions to the store at one moment that get in each other's
	// way. It is about no run; its label must be its own.
	VerbContend = "contend"
)

// Call is one call of a client.
type Call struct {
	At   Duration `json:"at"`
	Verb string   `json:"verb"`
	// Node is the node that the client talks to.
	Node string `json:"node"`
	// Label names a run within the plan; calls with the same label are about the same
	// run. Two submits of one label with the same key are duplicates.
	Label string `json:"label"`
	// App and Key are those of a submit. Without a key the run's id is drawn.
	App string `json:"app,omitempty"`
	Key string `json:"key,omitempty"`
	// Run is the id that the run of a submit without a key has, instead of a drawn one: a
	// plan that is cut down keeps the ids, and with them who carries which run.
	Run string `json:"run,omitempty"`
	// Force is that of a cancel.
	Force   bool     `json:"force,omitempty"`
	Command *Command `json:"command,omitempty"`
}

// Command is what a submitted run does and how long it may.
type Command struct {
	// Takes is how long it runs if nobody ends it; Code is what it ends with then.
	Takes Duration `json:"takes"`
	Code  int32    `json:"code,omitempty"`
	// Image is what it is made of; one that is empty need not be pulled.
	Image string `json:"image,omitempty"`
	// Deaf commands ignore the stop signal.
	Deaf bool `json:"deaf,omitempty"`
	// Orphan is how long a child of the command outlives it.
	Orphan        Duration `json:"orphan,omitempty"`
	Timeout       Duration `json:"timeout"`
	StartDeadline Duration `json:"start_deadline"`
	StopGrace     Duration `json:"stop_grace"`
	// Retry is absent for one attempt.
	Retry *Retry `json:"retry,omitempty"`
}

// Retry is what a run tries again.
type Retry struct {
	Retries int32 `json:"retries"`
	// HealsAt is the attempt from which on the command ends with 0; 0 for never.
	HealsAt int32 `json:"heals_at,omitempty"`
	// Never are codes that are not tried again.
	Never      []int32  `json:"never,omitempty"`
	Backoff    Duration `json:"backoff"`
	BackoffMax Duration `json:"backoff_max"`
	Jitter     int32    `json:"jitter,omitempty"`
	// OnLoss tries an attempt again that was lost with its node or sandbox.
	OnLoss bool `json:"on_loss,omitempty"`
	// Waits lets an attempt go on when its node loses its session, and waits for its word.
	Waits bool `json:"waits,omitempty"`
}

// Longest is about how long all attempts of a command may take where nothing is in
// their way but what they are lost with.
func (c Command) Longest() Duration {
	one := min(c.Takes, c.Timeout) + c.Orphan
	if c.Retry == nil {
		return one
	}
	again, attempts := one+2*max(c.Retry.Backoff, c.Retry.BackoffMax), Duration(1+c.Retry.Retries)
	if !c.Retry.OnLoss {
		return attempts * again
	}
	return attempts*again + lossesMax*(again+aLoss)
}

const (
	// lossesMax is how many losses of one run are followed by another attempt.
	lossesMax = 5
	// aLoss is about how long it takes to declare a node lost.
	aLoss = Duration(3 * time.Minute)
)

// NodeName is the name of the i-th node, counted from 0.
func NodeName(i int) string { return "n" + strconv.Itoa(i+1) }

// NodeNames are the names of all nodes.
func (o Options) NodeNames() []string {
	names := make([]string, o.Nodes)
	for i := range names {
		names[i] = NodeName(i)
	}
	return names
}

// has tells whether there is a node of a name.
func (o Options) has(node string) bool {
	n, err := strconv.Atoi(strings.TrimPrefix(node, "n"))
	return err == nil && n >= 1 && n <= o.Nodes && node == NodeName(n-1)
}

// Encode writes a plan as a file holds it.
func Encode(p Plan) ([]byte, error) {
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode plan of seed %d: %w", p.Seed, err)
	}
	return append(data, '\n'), nil
}

// Decode reads a plan from a file's content and checks it.
func Decode(data []byte) (Plan, error) {
	var p Plan
	if err := decodeStrictly(data, &p); err != nil {
		return Plan{}, fmt.Errorf("decode plan: %w", err)
	}
	if err := p.Check(); err != nil {
		return Plan{}, err
	}
	return p, nil
}

// The bounds of a plan.
const (
	NodesMax   = 15
	MembersMax = 7
	// OpsLeast is the least of operations that the store must take in a transaction.
	OpsLeast = 16
)

// Check finds what no world can be made of.
func (p Plan) Check() error {
	var faults []error
	if p.Version != Version {
		faults = append(faults, fmt.Errorf("version %d is not %d", p.Version, Version))
	}
	o := p.Options
	if o.Nodes < 1 || o.Nodes > NodesMax {
		faults = append(faults, fmt.Errorf("nodes: %d is not between 1 and %d", o.Nodes, NodesMax))
	}
	if o.Members < 1 || o.Members > MembersMax || o.Members%2 == 0 {
		faults = append(faults, fmt.Errorf("members: %d is not odd and between 1 and %d", o.Members, MembersMax))
	}
	if o.Solo && o.Nodes != 1 {
		faults = append(faults, fmt.Errorf("solo: there are %d nodes", o.Nodes))
	}
	if o.Flights < 0 || o.OpsMax != 0 && o.OpsMax < OpsLeast {
		faults = append(faults, fmt.Errorf("flights and ops_max: must not be below 0 and %d", OpsLeast))
	}
	if o.Shards < 1 || o.SandboxesMax < 1 {
		faults = append(faults, errors.New("shards and sandboxes_max must be above 0"))
	}
	if o.Probes < 0 || o.Probes > NodesMax {
		faults = append(faults, fmt.Errorf("probes: %d is not between 0 and %d", o.Probes, NodesMax))
	}
	if o.Length <= 0 || o.Converge <= 0 {
		faults = append(faults, errors.New("length and converge must be above 0"))
	}
	if !slices.Contains([]string{PolicyFIFO, PolicyUniform, PolicyBiased, PolicyStarve}, o.Policy.Kind) {
		faults = append(faults, fmt.Errorf("policy: there is no %q", o.Policy.Kind))
	}
	for i, f := range p.Faults {
		if f.What == nil || f.End < f.Begin || f.Begin < 0 {
			faults = append(faults, fmt.Errorf("fault %d: ends before it begins, begins before the world, or is none", i))
		} else if on := f.What.On(); on != "" && !o.has(on) {
			faults = append(faults, fmt.Errorf("fault %d: %s: there is no node %s", i, f.What.Kind(), on))
		}
	}
	faults = append(faults, checkCalls(p.Workload))
	for i, c := range p.Workload {
		if !o.has(c.Node) {
			faults = append(faults, fmt.Errorf("call %d: there is no node %s", i, c.Node))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("check plan: %w", err)
	}
	return nil
}
