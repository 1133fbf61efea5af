package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api/codes"
)

// Patience is how long a call goes on trying to reach a node.
type Patience struct {
	// First is for a node that the client has not reached yet: long enough for one
	// that is just starting, short enough for a wrong address. 3 s by default.
	First time.Duration
	// Again is for a node that the client has reached before: a restart must not cost
	// a caller its result. 2 min by default.
	Again time.Duration
	// The pause between two tries doubles from PauseMin to PauseMax; 50 ms and 2 s by
	// default.
	PauseMin, PauseMax time.Duration
	// Silent is how long a call that may have nothing to say for long (Exec, Attach, Logs,
	// Watch, Changes, PullImage, ImportImage, CopyFrom) hears nothing before the node is
	// asked whether it is there, and how long its answer may take: after twice that its
	// connection is given up, sooner than the node gives up its caller. 15 s by default.
	Silent time.Duration
}

// PatienceDefault has the default of each field.
var PatienceDefault = Patience{First: 3 * time.Second, Again: 2 * time.Minute, PauseMin: 50 * time.Millisecond, PauseMax: 2 * time.Second, Silent: 15 * time.Second}

func (p Patience) complete() Patience {
	for _, field := range []struct{ value, fallback *time.Duration }{
		{&p.First, &PatienceDefault.First},
		{&p.Again, &PatienceDefault.Again},
		{&p.PauseMin, &PatienceDefault.PauseMin},
		{&p.PauseMax, &PatienceDefault.PauseMax},
		{&p.Silent, &PatienceDefault.Silent},
	} {
		if *field.value <= 0 {
			*field.value = *field.fallback
		}
	}
	p.PauseMax = max(p.PauseMin, p.PauseMax)
	return p
}

// Retry is a failed try that another follows.
type Retry struct {
	// Op is what is tried, Err why it failed.
	Op  string
	Err error
	// Reached tells whether the node was heard before.
	Reached bool
	// Lasted is how long the node has not answered by now, Limit how long it may not.
	Lasted, Limit time.Duration
}

// final tells whether what a word of the API says stays as it is on this node, although
// the class that it travels under may say that the call can be repeated.
func final(code codes.Code) bool {
	line, known := codes.Of(code)
	return code == codes.LogElsewhere || code == codes.RunElsewhere || known && !line.Repeat
}

// transient tells whether the same call may succeed a moment later: the connection
// broke, or the node is about to stop or to start.
func transient(err error) bool {
	if errors.Is(err, ErrGone) || unsendable(err) {
		return false
	}
	code := connect.CodeOf(err)
	if final(codes.Code(infoOf(err).GetCode())) {
		return false
	}
	if connect.IsWireError(err) {
		switch code {
		case connect.CodeUnavailable, connect.CodeCanceled, connect.CodeDeadlineExceeded, connect.CodeResourceExhausted, connect.CodeAborted:
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

// trial counts the tries of one call since the node was last heard. It is used by one
// goroutine.
type trial struct {
	c  *Client
	op string
	// started is when the call was begun, and began when the outage was, if there is one.
	started, began time.Time
	tries          int
	// unsure: a try ended in a way that leaves open whether the node has done it.
	unsure bool
}

func (c *Client) trial(op string) *trial { return &trial{c: c, op: op, started: time.Now()} }

// heard ends an outage, if there was one.
func (t *trial) heard() {
	t.c.reached.Store(true)
	t.c.hearing.note()
	t.began, t.tries, t.unsure = time.Time{}, 0, false
}

// next returns nil when the call is worth another try, after the pause before it, or
// else what to fail with.
func (t *trial) next(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ended(ctx, t.op, err)
	}
	t.unsure = t.unsure || maybeDone(err)
	if !transient(err) {
		return t.failure(err)
	}
	now := time.Now()
	patience, reached := t.c.patience, t.c.reached.Load()
	if t.began.IsZero() {
		t.began = now
		if !reached && silent(err) {
			t.began = t.started // nothing was ever heard, and that took its time already
		}
	}
	limit := patience.First
	if reached {
		limit = patience.Again
	}
	lasted := now.Sub(t.began)
	if lasted >= limit {
		return t.failure(err)
	}
	if t.c.retrying != nil {
		t.c.retrying(Retry{Op: t.op, Err: t.c.failure(t.op, err), Reached: reached, Lasted: lasted, Limit: limit})
	}
	wait := min(patience.PauseMin<<min(t.tries, 10), patience.PauseMax)
	wait = wait/2 + rand.N(wait/2+1) //nolint:gosec // it spreads callers, it hides nothing
	t.tries++
	if !pause(ctx, wait) {
		return ended(ctx, t.op, err)
	}
	return nil
}

// failure is what the last of the tries has met.
func (t *trial) failure(err error) *Error {
	failed := t.c.failure(t.op, err)
	failed.Unsure = t.unsure
	return failed
}

// persist repeats a call until it is decided. Each try has the given time.
func (t *trial) persist(ctx context.Context, limit time.Duration, try func(context.Context) error) error {
	for {
		err := func() error {
			bounded, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			return try(bounded)
		}()
		if err == nil {
			t.heard()
			return nil
		}
		if err := t.next(ctx, err); err != nil {
			return err
		}
	}
}

// pause returns false if the context ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
