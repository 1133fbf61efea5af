package host

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// What protoactor may say at most; the rest is counted.
const (
	bridgeLinesMax = 10
	bridgeWindow   = 10 * time.Second
)

// bridge carries protoactor's log to zap. Its information is our debugging: it
// tells of each dead letter and of each panic, which the host logs better. Only
// addresses and types are carried, for messages hold what no log may.
type bridge struct {
	log   *zap.Logger
	limit *limit
	attrs []slog.Attr
}

// limit counts the lines of a window.
type limit struct {
	clock Clock

	mu         sync.Mutex
	since      time.Duration
	lines      int
	suppressed int
}

var _ slog.Handler = (*bridge)(nil)

func newBridge(log *zap.Logger, clock Clock) *bridge {
	return &bridge{log: log.Named("protoactor"), limit: &limit{clock: clock, since: clock.Now()}}
}

func zapLevel(level slog.Level) zapcore.Level {
	switch {
	case level >= slog.LevelError:
		return zapcore.ErrorLevel
	case level >= slog.LevelWarn:
		return zapcore.WarnLevel
	default:
		return zapcore.DebugLevel
	}
}

// Enabled tells whether zap would write the level.
func (b *bridge) Enabled(_ context.Context, level slog.Level) bool {
	return b.log.Core().Enabled(zapLevel(level))
}

// Handle writes one line.
func (b *bridge) Handle(_ context.Context, record slog.Record) error {
	suppressed, ok := b.limit.take()
	if !ok {
		return nil
	}
	fields := make([]zap.Field, 0, len(b.attrs)+record.NumAttrs()+1)
	for _, a := range b.attrs {
		fields = append(fields, field(a))
	}
	record.Attrs(func(a slog.Attr) bool {
		fields = append(fields, field(a))
		return true
	})
	if suppressed > 0 {
		fields = append(fields, zap.Int("suppressed", suppressed))
	}
	if entry := b.log.Check(zapLevel(record.Level), record.Message); entry != nil {
		entry.Write(fields...)
	}
	return nil
}

// WithAttrs returns a bridge whose lines have more fields.
func (b *bridge) WithAttrs(attrs []slog.Attr) slog.Handler {
	more := append(append([]slog.Attr(nil), b.attrs...), attrs...)
	return &bridge{log: b.log, limit: b.limit, attrs: more}
}

// WithGroup returns the bridge: protoactor has no groups.
func (b *bridge) WithGroup(string) slog.Handler { return b }

// take reports whether a line may be written, and how many were not before it.
func (l *limit) take() (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := l.clock.Now(); now-l.since >= bridgeWindow {
		l.since, l.lines = now, 0
	}
	if l.lines >= bridgeLinesMax {
		l.suppressed++
		return 0, false
	}
	l.lines++
	suppressed, l.suppressed = l.suppressed, 0
	return suppressed, true
}

func field(a slog.Attr) zap.Field {
	value := a.Value.Resolve()
	switch value.Kind() {
	case slog.KindString:
		return zap.String(a.Key, value.String())
	case slog.KindInt64:
		return zap.Int64(a.Key, value.Int64())
	default:
	}
	switch v := value.Any().(type) {
	case *actor.PID:
		return zap.String(a.Key, v.GetId())
	case error:
		return zap.NamedError(a.Key, v)
	default:
		return zap.String(a.Key, typeName(v))
	}
}

func typeName(v any) string { return fmt.Sprintf("%T", actor.UnwrapEnvelopeMessage(v)) }

// PanicText is what may be logged of a panic's value: the text of a string or an
// error, and no more than the type of anything else, which may be a message.
func PanicText(reason any) string {
	switch r := reason.(type) {
	case string:
		return r
	case error:
		return r.Error()
	default:
		return typeName(r)
	}
}
