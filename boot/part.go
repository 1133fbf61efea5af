package boot

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/fx"
)

// part is one step of the start and, in reverse, of the stop.
type part struct {
	name         string
	startTimeout time.Duration
	stopTimeout  time.Duration
	start, stop  func(context.Context) error
}

// add puts a part into the order of start and stop. Its start is not cut short by
// fx's own deadline but by the part's, so that an error can name what was slow.
func add(lifecycle fx.Lifecycle, p part) {
	lifecycle.Append(fx.Hook{
		OnStart: func(ctx context.Context) error { return p.within(ctx, "start", p.startTimeout, p.start) },
		OnStop:  func(ctx context.Context) error { return p.within(ctx, "stop", p.stopTimeout, p.stop) },
	})
}

func (p part) within(ctx context.Context, verb string, timeout time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := do(ctx); err != nil {
		return fmt.Errorf("%s %s: %w", verb, p.name, err)
	}
	return nil
}
