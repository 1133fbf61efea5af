package logger

import (
	"context"
	"time"

	"github.com/errand-run/errand/nodes/fence/page"
	"github.com/errand-run/errand/nodes/sandbox/cgroup"
)

// killLimit bounds one attempt to empty the sandbox; another follows, and output is read
// between the two.
const killLimit = 500 * time.Millisecond

// killer kills the logger's own sandbox at the node's fence: the daemon and the guard do
// so too, and this is who is left when both are dead. The zero value kills nothing.
type killer struct {
	lookout *page.Lookout
	group   *cgroup.Group
}

// killer is that of a config. One that can not be had takes no log from anybody: it is
// the third of those who kill.
func (c Config) killer() killer {
	if c.Fence == "" {
		return killer{}
	}
	parent, err := cgroup.Open(c.CgroupRoot, c.Parent)
	if err != nil {
		return killer{}
	}
	lookout, err := page.Watch(c.Fence)
	if err != nil {
		return killer{}
	}
	return killer{lookout: lookout, group: parent.Group(c.Group)}
}

func (k killer) look() {
	if k.lookout.Look() {
		ctx, cancel := context.WithTimeout(context.Background(), killLimit)
		defer cancel()
		_, _ = k.group.Kill(ctx) // what is left is killed at the next look
	}
}

func (k killer) close() { k.lookout.Close() }
