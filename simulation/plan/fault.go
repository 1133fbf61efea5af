package plan

import (
	"encoding/json"
	"fmt"
	"reflect"
)

// Class groups faults by what they befall.
type Class string

// The classes.
const (
	ClassNetwork Class = "network"
	ClassNode    Class = "node"
	ClassClock   Class = "clock"
	ClassStore   Class = "store"
	ClassSandbox Class = "sandbox"
)

// Classes are all classes, in order.
func Classes() []Class {
	return []Class{ClassNetwork, ClassNode, ClassClock, ClassStore, ClassSandbox}
}

// What is one of the fault types of this package.
type What interface {
	// Kind is the fault's name in a plan file.
	Kind() string
	// Class says what it befalls.
	Class() Class
	// On is the node that it befalls, or empty.
	On() string
}

// Fault is something that befalls a world from Begin to End. Those that happen at
// one moment have both the same.
type Fault struct {
	Begin Duration
	End   Duration
	What  What
}

type faultFile struct {
	Kind  string          `json:"fault"`
	Begin Duration        `json:"begin"`
	End   Duration        `json:"end"`
	With  json.RawMessage `json:"with"`
}

// MarshalJSON writes the fault with its kind and its parameters.
func (f Fault) MarshalJSON() ([]byte, error) {
	with, err := json.Marshal(f.What)
	if err != nil {
		return nil, fmt.Errorf("fault %s: %w", f.What.Kind(), err)
	}
	return json.Marshal(faultFile{Kind: f.What.Kind(), Begin: f.Begin, End: f.End, With: with})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (f *Fault) UnmarshalJSON(data []byte) error {
	var file faultFile
	if err := decodeStrictly(data, &file); err != nil {
		return err
	}
	for _, k := range kinds {
		if k.Kind() != file.Kind {
			continue
		}
		into := reflect.New(reflect.TypeOf(k))
		if err := decodeStrictly(file.With, into.Interface()); err != nil && len(file.With) > 0 {
			return fmt.Errorf("fault %s: %w", file.Kind, err)
		}
		f.Begin, f.End = file.Begin, file.End
		f.What, _ = into.Elem().Interface().(What) // as every kind is
		return nil
	}
	return fmt.Errorf("there is no fault %q", file.Kind)
}

// String returns the fault in one line.
func (f Fault) String() string {
	with, err := json.Marshal(f.What)
	if err != nil {
		with = []byte(err.Error())
	}
	return fmt.Sprintf("%s %s from %s to %s", f.What.Kind(), with, f.Begin, f.End)
}

// kinds are a zero value of each fault.
var kinds = []What{
	Cut{},
	Noise{},
	Hold{},
	View{},
	Flap{},
	Namesake{},
	Crash{},
	Restart{},
	Reboot{},
	Pause{},
	Panic{},
	DiskStall{},
	DiskFull{},
	DiskSwap{},
	DiskRevert{},
	DiskTorn{},
	DiskLoss{},
	WallStep{},
	Drift{},
	StoreAway{},
	WatchLag{},
	Unknown{},
	LeaderPause{},
	LeaderChange{},
	MemberCut{},
	KeyRemoved{},
	LeaseDropped{},
	LeaseRevoked{},
	Compaction{},
	StoreRefuses{},
	StoreRestored{},
	DoubledTell{},
	SlowCreate{},
	FailedStart{},
	LateExit{},
	DoubledExit{},
	ShimDeath{},
	Vanish{},
	SlowKill{},
	GuardDeath{},
	LogDeath{},
	Selected{},
	DiskErrors{},
	Flaky{},
	RuntimeAway{},
	RegistryBusy{},
	NodeRemoved{},
}

// Faults of the network and of what nodes believe of each other.
type (
	// Selected loses every message of one type between the nodes, or delivers it so much
	// later.
	Selected struct {
		// Message is the type's name without its package: Started, Exited.
		Message string   `json:"message"`
		Hold    Duration `json:"hold,omitempty"`
	}
	// Cut loses every packet from one set of nodes to another, in that direction only.
	Cut struct {
		From []string `json:"from"`
		To   []string `json:"to"`
		// Both cuts the other direction too.
		Both bool `json:"both,omitempty"`
	}
	// Noise loses, doubles, delays and so reorders packets between two nodes; an empty
	// name stands for all.
	Noise struct {
		From      string   `json:"from,omitempty"`
		To        string   `json:"to,omitempty"`
		Drop      float64  `json:"drop,omitempty"`
		Duplicate float64  `json:"duplicate,omitempty"`
		Delay     Duration `json:"delay,omitempty"`
	}
	// Hold keeps every packet that is sent from one node to another while it lasts, and
	// delivers them all at its end.
	Hold struct {
		From string `json:"from"`
		To   string `json:"to"`
	}
	// View makes a node believe that just some nodes are alive.
	View struct {
		Node  string   `json:"node"`
		Alive []string `json:"alive"`
	}
	// Flap makes all others see a node come and go.
	Flap struct {
		Node   string   `json:"node"`
		Period Duration `json:"period"`
	}
	// Namesake lets a second machine come up under the name of another node.
	Namesake struct {
		Node string `json:"node"`
		As   string `json:"as"`
	}
)

// Faults of machines and daemons.
type (
	// DiskErrors let syncs of a node's journal fail: what of them is there for the next
	// daemon, and after a loss of power, nobody knows.
	DiskErrors struct {
		Node   string  `json:"node"`
		Chance float64 `json:"chance"`
	}
	// Crash kills the daemon; it comes back at the end.
	Crash struct {
		Node string `json:"node"`
	}
	// Restart stops the daemon as an update does; it comes back at the end. Revoke lets
	// whoever stops it end its session too, while its sandboxes run on. Cut kills it that
	// long after it was asked to stop.
	Restart struct {
		Node   string   `json:"node"`
		Revoke bool     `json:"revoke,omitempty"`
		Cut    Duration `json:"cut,omitempty"`
	}
	// Reboot takes the machine down; it comes back at the end, on a new boot id.
	Reboot struct {
		Node string `json:"node"`
	}
	// Pause stops everything on the machine while time goes on.
	Pause struct {
		Node string `json:"node"`
		// Uncounted pauses are not counted by boottime either: outside the model of the
		// fence.
		Uncounted bool `json:"uncounted,omitempty"`
		// Suspend stops the monotonic clock too.
		Suspend bool `json:"suspend,omitempty"`
	}
	// Panic makes the next turns of a kind of actor on a node panic.
	Panic struct {
		Node  string `json:"node"`
		Actor string `json:"actor"`
		Turns int    `json:"turns"`
	}
	// NodeRemoved is an operator who takes the node for dead, rightly or not: while it lasts
	// he says so through another node, again and again, until that has taken his word, which
	// it does when the node has no session.
	NodeRemoved struct {
		Node    string `json:"node"`
		Through string `json:"through"`
	}
	// DiskStall keeps every sync of the journal until its end, or for By each.
	DiskStall struct {
		Node string   `json:"node"`
		By   Duration `json:"by,omitempty"`
	}
	// DiskFull refuses every write of the journal.
	DiskFull struct {
		Node string `json:"node"`
	}
	// DiskSwap crashes two daemons and swaps their disks; both come back at the end.
	DiskSwap struct {
		Node string `json:"node"`
		With string `json:"with"`
	}
	// DiskRevert crashes the daemon and brings it back on the journal as it was some
	// time before.
	DiskRevert struct {
		Node string   `json:"node"`
		Age  Duration `json:"age"`
	}
	// DiskTorn takes the machine down and undoes the last write of a disk that had said
	// that it was synced; the machine comes back at the end.
	DiskTorn struct {
		Node string `json:"node"`
	}
	// DiskLoss crashes the daemon and brings it back on an empty journal.
	DiskLoss struct {
		Node string `json:"node"`
	}
)

// Faults of clocks.
type (
	// WallStep moves the wall clock at its beginning and back at its end.
	WallStep struct {
		Node string   `json:"node"`
		By   Duration `json:"by"`
	}
	// Drift makes a node's clocks run faster, or slower, by a fraction.
	Drift struct {
		Node string  `json:"node"`
		By   float64 `json:"by"`
	}
)

// Faults of the store and of the way to it.
type (
	// StoreAway cuts a node from the store: what it sends is lost, or only the answers
	// are. An empty name stands for all nodes.
	StoreAway struct {
		Node    string `json:"node,omitempty"`
		Answers bool   `json:"answers,omitempty"`
	}
	// WatchLag delays what a node's watches bring while all else is fast.
	WatchLag struct {
		Node string   `json:"node"`
		By   Duration `json:"by"`
	}
	// Unknown lets writes of a node time out and be committed later, or never.
	Unknown struct {
		Node   string   `json:"node"`
		Chance float64  `json:"chance"`
		Late   Duration `json:"late"`
	}
	// LeaderPause stops the store's leader; the others elect another one, and the old
	// one acknowledges keepalives when it wakes, until it hears of that.
	LeaderPause struct {
		// Then cuts this node from the store when the pause ends.
		Then string `json:"then,omitempty"`
	}
	// LeaderChange moves the leadership: every lease has its full TTL again.
	LeaderChange struct{}
	// MemberCut isolates a member: its watches fall silent and its reads grow stale.
	MemberCut struct {
		Member int `json:"member"`
	}
	// KeyRemoved is an administrator who deletes a node's session.
	KeyRemoved struct {
		Node string `json:"node"`
	}
	// LeaseDropped is one who puts it again without a lease.
	LeaseDropped struct {
		Node string `json:"node"`
	}
	// LeaseRevoked is one who revokes its lease.
	LeaseRevoked struct {
		Node string `json:"node"`
	}
	// Compaction compacts the store up to now.
	Compaction struct{}
	// StoreRestored replaces the store by the copy that was made some time before: at its
	// beginning with all daemons down, which come back at its end, or at its end, if
	// nobody could reach the store meanwhile. The procedure of a restore is kept to:
	// revisions go on, the epoch is raised, all sessions are deleted.
	StoreRestored struct {
		Age Duration `json:"age"`
		// Online leaves the daemons as they are and keeps them from the store.
		Online bool `json:"online,omitempty"`
		// Raw does nothing but replace the store, at the beginning: outside of what is
		// promised.
		Raw bool `json:"raw,omitempty"`
	}
	// StoreRefuses lets the store refuse writes: it is full, or busy.
	StoreRefuses struct {
		Full bool `json:"full,omitempty"`
	}
	// DoubledTell doubles every message between actors after a while, the Start of a
	// run after its acknowledgement among them.
	DoubledTell struct {
		Delay Duration `json:"delay"`
	}
)

// Faults of sandboxes.
type (
	// SlowCreate delays creates and starts.
	SlowCreate struct {
		Node string   `json:"node"`
		By   Duration `json:"by"`
	}
	// FailedStart lets a share of the creates and starts fail.
	FailedStart struct {
		Node      string  `json:"node"`
		Chance    float64 `json:"chance"`
		Permanent bool    `json:"permanent,omitempty"`
	}
	// LateExit delays the news of exits.
	LateExit struct {
		Node string   `json:"node"`
		By   Duration `json:"by"`
	}
	// DoubledExit brings the news of exits twice.
	DoubledExit struct {
		Node string `json:"node"`
	}
	// ShimDeath ends whoever watches over the commands of a node: their ends are seen
	// by nobody.
	ShimDeath struct {
		Node string `json:"node"`
		// Alive lets the commands themselves go on.
		Alive bool `json:"alive,omitempty"`
	}
	// Vanish ends every command of a node without a trace of its end.
	Vanish struct {
		Node string `json:"node"`
	}
	// SlowKill lets kills take longer.
	SlowKill struct {
		Node string   `json:"node"`
		By   Duration `json:"by"`
	}
	// GuardDeath kills the guard of a node, which comes back at the end.
	GuardDeath struct {
		Node string `json:"node"`
	}
	// RuntimeAway lets the runtime of a node answer nothing for a while, as when it is
	// started again: whoever waits for an exit hears that it is not there. Sandboxes go on.
	RuntimeAway struct {
		Node string `json:"node"`
	}
	// RegistryBusy lets a share of the pulls of a node fail for now, after which the
	// registry is not to be asked for a while, and all take so much longer.
	RegistryBusy struct {
		Node       string   `json:"node"`
		Chance     float64  `json:"chance"`
		RetryAfter Duration `json:"retry_after,omitempty"`
		Slow       Duration `json:"slow,omitempty"`
	}
	// Flaky lets the runtime of a node do what it is asked to and not say so, leave what
	// it has given up to make, lose the end of logs, and keep what a reboot should end.
	Flaky struct {
		Node   string  `json:"node"`
		Chance float64 `json:"chance"`
	}
	// LogDeath kills the log processes of a node's sandboxes; one that lasts kills also
	// those of sandboxes that are started meanwhile.
	LogDeath struct {
		Node string `json:"node"`
	}
)

// ParseClass reads the name of a class.
func ParseClass(name string) (Class, error) {
	for _, c := range Classes() {
		if string(c) == name {
			return c, nil
		}
	}
	return "", fmt.Errorf("there is no class %q", name)
}
