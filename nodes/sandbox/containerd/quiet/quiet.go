// Package quiet keeps containerd's client from logging. What it logs may hold texts of
// the runtime, and its errors tell all that is needed; and it logs with the standard
// logger of the whole process, which may be that of a program that a node is only a
// part of.
package quiet

import (
	"context"

	"github.com/containerd/log"
)

// entry logs nothing: a zero logger lets pass only what panics.
var entry = &log.Entry{Logger: zero(log.L.Logger)}

func zero[L any](*L) *L { return new(L) }

// Context is a context with which the client logs nothing.
func Context(ctx context.Context) context.Context { return log.WithLogger(ctx, entry) }
