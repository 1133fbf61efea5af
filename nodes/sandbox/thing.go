package sandbox

import (
	"regexp"
	"time"
)

// Kind is what a Thing is, in a word that people read.
type Kind string

// The kinds of things that sandboxes have on a machine.
const (
	KindProcess Kind = "process"
	// KindNamespace is one that a process of a sandbox keeps, not the host's.
	KindNamespace Kind = "namespace"
	KindMount     Kind = "mount"
	KindCgroup    Kind = "cgroup"
	// KindDirectory is a sandbox's own, with its status, its FIFOs and its logger's socket.
	KindDirectory Kind = "directory"
	// KindFile is a sandbox of the process driver.
	KindFile      Kind = "file"
	KindTemporary Kind = "temporary file"

	// What containerd knows.
	KindContainer Kind = "container"
	KindTask      Kind = "task"
	KindSnapshot  Kind = "snapshot"
	KindLease     Kind = "lease"
	// KindIngest is content that is being fetched, or was when its fetch was broken off.
	KindIngest Kind = "ingest"

	// What its shims and runtime keep.
	KindBundle  Kind = "bundle"
	KindSocket  Kind = "shim socket"
	KindRuntime Kind = "runtime state"

	// KindContainerd is one of the node's own that was started for a data directory from
	// which its files were removed or moved away.
	KindContainerd Kind = "containerd"
)

// Thing is one thing on the machine that is, or was, a sandbox's.
type Thing struct {
	Kind Kind
	// Name tells it from others of its kind: a path, an id, a process's number and program.
	Name string
	// Sandbox is the id of the sandbox that it is of; empty where that can not be seen.
	Sandbox string
	// Since is when it was made; zero where that can not be seen.
	Since time.Time
	// Until is when its keeper removes it by itself; zero for what nobody does.
	Until time.Time
	// Keeper says in words what keeps it on purpose, though no sandbox is there; empty
	// for a thing of a sandbox.
	Keeper string
}

// String is the kind and the name.
func (t Thing) String() string { return string(t.Kind) + " " + t.Name }

// idForm finds a sandbox's id (records.SandboxID) where it stands alone.
var idForm = regexp.MustCompile(`(?:^|[^a-z0-9])(e[a-z2-7]{32})(?:[^a-z0-9]|$)`)

// IDIn returns the first sandbox's id in a text, a path for instance, or nothing.
func IDIn(text string) string {
	if found := idForm.FindStringSubmatch(text); found != nil {
		return found[1]
	}
	return ""
}
