package logger

import (
	"context"
	"time"

	"github.com/errand-run/errand/nodes/fence/page"
	"github.com/errand-run/errand/nodes/sandbox/cgroup"
)

// killLimit bounds one attempt to empty the sandbox; another follows.
const killLimit = 500 * time.Millisecond

// watchFence kills the logger's own sandbox at the node's fence: the daemon and the guard
// do so too, and this is who is left when both are dead. It shares nothing with who writes
// the log, whose disk may hang. Without a fence there is none, and one that can not be had
// takes no log from anybody: it is the third of those who kill.
func (c Config) watchFence() *page.Lookout {
	if c.Fence == "" {
		return nil
	}
	parent, err := cgroup.Open(c.CgroupRoot, c.Parent)
	if err != nil {
		return nil
	}
	group := parent.Group(c.Group)
	lookout, err := page.Watch(c.Fence, func() {
		ctx, cancel := context.WithTimeout(context.Background(), killLimit)
		defer cancel()
		_, _ = group.Kill(ctx) // what is left is killed at the next look
	})
	if err != nil {
		return nil
	}
	return lookout
}
