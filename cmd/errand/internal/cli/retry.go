package cli

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"connectrpc.com/connect"
)

// patience is how long errand goes on trying to reach a node.
type patience struct {
	// first is for a node that was not reached yet: long enough for one that is
	// just starting, short enough for a wrong address.
	first time.Duration
	// again is for a node that was reached before: a restart must not cost a
	// script its result.
	again time.Duration
	// quiet is how long an outage lasts before it is worth a word.
	quiet time.Duration
	// The pause between two tries doubles from the shortest to the longest.
	pauseMin, pauseMax time.Duration
}

// finalCodes are words of the API for what stays as it is although its class says that
// the call may be repeated: a log that lies on another node, a request of a wrong size.
var finalCodes = map[string]bool{
	"LOG_ELSEWHERE": true, codeRequestTooLarge: true, "IMAGE_TOO_LARGE": true, "TOO_MANY_APPS": true,
}

var defaultPatience = patience{
	first:    3 * time.Second,
	again:    2 * time.Minute,
	quiet:    3 * time.Second,
	pauseMin: 50 * time.Millisecond,
	pauseMax: 2 * time.Second,
}

// transient tells whether the same call may succeed a moment later: the
// connection broke, or the node is about to stop or to start. Only repeatable
// calls may ask.
func transient(err error) bool {
	var f *failure
	var status exitStatus
	if errors.As(err, &f) || errors.As(err, &status) {
		return false
	}
	code := connect.CodeOf(err)
	if finalCodes[infoOf(err).GetCode()] {
		return false
	}
	if connect.IsWireError(err) {
		switch code {
		case connect.CodeUnavailable, connect.CodeCanceled, connect.CodeDeadlineExceeded, connect.CodeResourceExhausted:
			return true
		default:
			return false
		}
	}
	// Not the node's own words: a broken connection, or a proxy's answer. A
	// stream that was cut shows as several codes, so the few that mean something
	// else are listed.
	switch code {
	case connect.CodeUnauthenticated, connect.CodePermissionDenied, connect.CodeUnimplemented, connect.CodeNotFound:
		return false
	default:
		return true
	}
}

// outage counts the tries since a node was last heard.
type outage struct {
	c       *connection
	reached bool // at least once
	began   time.Time
	tries   int
	told    bool
	until   time.Time // no further try after it; zero means none
}

func (o *outage) over() {
	o.reached = true
	o.began, o.tries = time.Time{}, 0
}

// next returns nil when the call is worth another try, after the pause before
// it, or else what to fail with.
func (o *outage) next(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !transient(err) {
		return o.c.explain(err)
	}
	now := time.Now()
	if o.began.IsZero() {
		o.began = now
	}
	limit := o.c.patience.first
	if o.reached {
		limit = o.c.patience.again
	}
	lasted := now.Sub(o.began)
	if lasted >= limit || !o.until.IsZero() && now.After(o.until) {
		return o.c.explain(err)
	}
	if o.reached && lasted >= o.c.patience.quiet && !o.told {
		o.told = true
		o.c.note("%s does not answer; trying again for %s", o.c.address, limit)
	}
	wait := o.c.patience.pauseMin << min(o.tries, 10)
	wait = min(wait, o.c.patience.pauseMax)
	wait = wait/2 + rand.N(wait/2+1) //nolint:gosec // it spreads callers, it hides nothing
	o.tries++
	return pause(ctx, wait)
}

// pause returns nil when the time has passed before the context ended.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// persist repeats a call that may be repeated until it is decided. Each try has
// the given time.
func (o *outage) persist(ctx context.Context, limit time.Duration, try func(context.Context) error) error {
	for {
		err := func() error {
			bounded, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			return try(bounded)
		}()
		if err == nil {
			o.over()
			return nil
		}
		if err := o.next(ctx, err); err != nil {
			return err
		}
	}
}
