package check

import (
	"fmt"

	"github.com/errand-run/errand/simulation/history"
)

// room: a node runs no more commands at a time than it is configured to. What a journal
// that was lost has forgotten is killed, and does not count until it is.
type room struct{}

func (room) Guarantee() Guarantee { return Room }

func (room) Observe(l *Ledger, e history.Event, report func(Finding)) {
	c, ok := e.Detail.(history.Command)
	if e.Kind != history.KindCommand || !ok || !c.Started || l.config.SandboxesMax == 0 || l.forgot {
		return
	}
	if n := l.machine(e.Node).commands; int64(n) > l.config.SandboxesMax {
		report(Finding{Run: e.Run, Node: e.Node, Text: fmt.Sprintf("%d commands run on %s, which takes %d", n, e.Node, l.config.SandboxesMax)})
	}
}
