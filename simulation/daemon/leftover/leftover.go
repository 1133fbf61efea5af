// Package leftover says from outside what is left of a node's sandboxes, and never asks
// the node. A test takes a node's inventory when all its runs have ended and their
// sandboxes are removed: whatever it names was left behind. Logs are kept on purpose, and
// counted apart.
package leftover

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/errand-run/errand/nodes/inventory"
)

// lookEvery is the time between two inventories.
const lookEvery = 200 * time.Millisecond

// Node is whose things are counted: a node with a data directory of its own, and with a
// private containerd if it has one.
type Node struct {
	// Data is the data directory, an absolute path that occurs in no other node's.
	Data string
	// Sandboxes are the ids of those that it had, for what carries their name only.
	Sandboxes []string
}

// Inventory returns all that there is of a node's sandboxes, each as "KIND NAME", in
// order. A node without any gives none. It fails where something can not be looked at.
func (n Node) Inventory(ctx context.Context) ([]string, error) {
	node, err := inventory.At(n.Data)
	if err != nil {
		return nil, err
	}
	node.Sandboxes = n.Sandboxes
	things, unseen := node.Take(ctx)
	var found []string
	for _, thing := range things {
		found = append(found, thing.String())
	}
	if len(unseen) > 0 {
		err = errors.New("not looked at: " + strings.Join(unseen, "; "))
	}
	return found, err
}

// Settle takes inventories until there is nothing left or the context ends, and returns
// the last one: removal goes on for a moment after a run has ended.
func (n Node) Settle(ctx context.Context) ([]string, error) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		found, err := n.Inventory(context.WithoutCancel(ctx))
		if err == nil && len(found) == 0 {
			return nil, nil
		}
		select {
		case <-ctx.Done():
			return found, err
		case <-tick.C:
		}
	}
}

// Logs counts the logs that are kept, one for each attempt, of however many segments.
func (n Node) Logs() (int, error) {
	entries, err := os.ReadDir(filepath.Join(n.Data, "logs"))
	kept := map[string]struct{}{}
	for _, entry := range entries {
		kept[strings.TrimSuffix(entry.Name(), ".log")] = struct{}{}
	}
	return len(kept), err
}
