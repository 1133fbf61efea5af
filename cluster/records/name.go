package records

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// NameBytesMax bounds a name, so that ids, keys and labels stay bounded too.
const NameBytesMax = 63

// DefaultApp is the app of a run that named none.
const DefaultApp = "default"

// ErrName is returned when a name can not be that of an app, a task or a node.
var ErrName = errors.New("a name is 1 to 63 of a-z, 0-9 and -, begins and ends with a letter or digit, and has no --")

// base32 in lower case without padding: safe in ids, keys, file and cgroup names.
var encoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// CheckName returns ErrName unless the name is one. Names never hold the
// characters that join them (a dot in ids, a slash in keys), so joined parts can
// not collide.
func CheckName(name string) error {
	if name == "" || len(name) > NameBytesMax || strings.Contains(name, "--") {
		return ErrName
	}
	for i := range len(name) {
		c := name[i]
		alphanumeric := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		edge := i == 0 || i == len(name)-1
		if !alphanumeric && (c != '-' || edge) {
			return ErrName
		}
	}
	return nil
}

// RunIDFromKey derives the id of a run that was created under an idempotency
// key: the same key in the same app is the same run.
func RunIDFromKey(app, key string) string {
	sum := sha256.Sum256([]byte(key))
	return "k." + app + "." + encoding.EncodeToString(sum[:])[:26]
}

// RunIDFromRandom makes an id from 16 random bytes.
func RunIDFromRandom(app string, random [16]byte) string {
	return "r." + app + "." + encoding.EncodeToString(random[:])
}

// AppOfRun reads the app out of a run's id. It refuses what is not a run id.
func AppOfRun(run string) (string, error) {
	kind, rest, ok := strings.Cut(run, ".")
	app, tail, ok2 := strings.Cut(rest, ".")
	if !ok || !ok2 || CheckName(app) != nil || tail == "" || len(tail) > 2*NameBytesMax {
		return "", fmt.Errorf("%q is not a run id", run)
	}
	dots := 0
	for i := range len(tail) {
		c := tail[i]
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-':
		case c == '.':
			dots++
		default:
			return "", fmt.Errorf("%q is not a run id", run)
		}
	}
	wantDots := 0
	switch kind {
	case "r", "k":
	case "t":
		wantDots = 1
	default:
		wantDots = -1
	}
	if dots != wantDots {
		return "", fmt.Errorf("%q is not a run id", run)
	}
	return app, nil
}

// ShardOf returns the shard of an app: xxhash64(app) mod shards.
func ShardOf(app string, shards int32) int32 {
	return int32(xxhash.Sum64String(app) % uint64(shards)) //nolint:gosec // below shards, an int32
}

// SandboxID names everything that a placement leaves on its node: container,
// snapshot, lease, cgroup, directory. 33 characters; containerd allows 76.
func SandboxID(run string, attempt, placement int32) string {
	// A node asks for it again and again: with a buffer of its own it costs one allocation.
	var buffer [sandboxIDInput]byte
	hashed := append(append(buffer[:0], run...), 0)
	hashed = binary.BigEndian.AppendUint32(hashed, uint32(attempt))   //nolint:gosec // bits, not a quantity
	hashed = binary.BigEndian.AppendUint32(hashed, uint32(placement)) //nolint:gosec // bits, not a quantity
	sum := sha256.Sum256(hashed)
	var text [1 + 52]byte // the length of 32 bytes in base32
	text[0] = 'e'
	encoding.Encode(text[1:], sum[:])
	return string(text[:33])
}

// sandboxIDInput is room for the ids of most runs and two numbers.
const sandboxIDInput = 128

// FencingTokenOf is the token that a sandbox hands to storage of the user's own
// (G12): it grows with each attempt of a run, across runs and restores. The
// assignment's create revision is the part that grows, the epoch keeps it growing
// across a restore.
func FencingTokenOf(epoch, assignmentCreate int64) uint64 {
	return uint64(epoch)<<48 | uint64(assignmentCreate) //nolint:gosec // both are positive
}
