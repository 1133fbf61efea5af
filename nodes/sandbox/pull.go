package sandbox

import "time"

// PullPhase is what a pull is at.
type PullPhase uint8

// The phases of a pull.
const (
	// PullWaiting means that others come first.
	PullWaiting PullPhase = iota + 1
	// PullResolving means that the registry is asked what the name means.
	PullResolving
	PullFetching
	PullUnpacking
	// PullFailed means that the last try failed; another may follow.
	PullFailed
)

// PullProgress is how far the pull of an image has come. It holds no secret.
type PullProgress struct {
	// Reference is the image's name, normalised.
	Reference string
	Phase     PullPhase
	// Bytes of Total are there, as they travel. Total is 0 until it is known.
	Bytes, Total int64
	// Rate is in bytes a second, over the last seconds.
	Rate int64
	// Layers is 0 until it is known.
	Layers, LayersDone int
	// Since is when this try began.
	Since time.Time
	// LastError is why the last try failed; empty if none did.
	LastError string
	// RetryAt is before when the registry does not want to be asked again, or zero.
	RetryAt time.Time
	// Runs wait for it, sorted. An image that a person asked for may have none.
	Runs []string
}

// Pulls tells of the pulls of a driver. Its methods touch memory only and may be
// called from any goroutine.
type Pulls interface {
	// PullOf returns the pull that a run waits for, or the last one that failed for it.
	PullOf(run string) (PullProgress, bool)
	// Pulls returns those that are under way, by reference.
	Pulls() []PullProgress
}
