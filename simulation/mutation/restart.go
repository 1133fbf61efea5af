package mutation

import (
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/nodes"
)

// fenceBeforeStore moves the fence when the lease of a planned restart is asked for,
// whether or not the store ever hears of it.
func fenceBeforeStore(seat Seat) {
	if seat.Ports.Fence != nil {
		seat.Ports.Leases = hasty{seat.Ports.Leases, seat.Ports.Fence, seat.Ports.Clock}
	}
}

type hasty struct {
	actors.Leases
	fence nodes.Fence
	clock actors.Clock
}

func (h hasty) Grant(ttl time.Duration, deliver func(actors.LeaseResult)) {
	session := nodes.DefaultSession()
	if state, ok := h.fence.Load(); ok && ttl > session.Lease {
		state.Deadline = max(state.Deadline, h.clock.Now().Boot+ttl-session.Margin)
		h.fence.Arm(state)
	}
	h.Leases.Grant(ttl, deliver)
}

// fenceNotShortened leaves a deadline where it is that is to be moved nearer.
func fenceNotShortened(seat Seat) {
	if seat.Ports.Fence == nil {
		return
	}
	next := seat.Ports.Fence
	seat.Ports.Fence = fence{
		Fence: next,
		arm: func(state nodes.FenceState) nodes.FenceState {
			if have, ok := next.Load(); ok && have.Session == state.Session {
				state.Deadline = max(state.Deadline, have.Deadline)
			}
			return state
		},
	}
}
