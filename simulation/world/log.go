package world

import (
	"fmt"
	"strings"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap/zapcore"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/simulation/history"
)

// logCore puts a node's log into the history's observers. Lines are no part of what
// is hashed: a world whose log nobody reads makes the same history.
type logCore struct {
	world  *World
	node   string
	fields []zapcore.Field
}

var _ zapcore.Core = (*logCore)(nil)

// Enabled is true: the level is for the reader to choose.
func (c *logCore) Enabled(zapcore.Level) bool { return true }

// With returns a core whose lines have more fields.
func (c *logCore) With(fields []zapcore.Field) zapcore.Core {
	return &logCore{world: c.world, node: c.node, fields: append(append([]zapcore.Field(nil), c.fields...), fields...)}
}

// Check adds the core.
func (c *logCore) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	return checked.AddCore(e, c)
}

// Sync does nothing.
func (c *logCore) Sync() error { return nil }

// Write makes an event of a line. Fields are written in the order in which they were
// given; the stack of a panic, whose addresses differ, is left out.
func (c *logCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	if strings.HasSuffix(e.LoggerName, "protoactor") {
		return nil // it names its system by chance
	}
	var b strings.Builder
	b.WriteString(e.Level.String())
	b.WriteByte(' ')
	b.WriteString(e.Message)
	run := ""
	for _, group := range [][]zapcore.Field{c.fields, fields} {
		for _, f := range group {
			if f.Key == "stack" {
				continue
			}
			value := fieldText(f)
			if f.Key == "run" {
				run = value
			}
			fmt.Fprintf(&b, " %s=%s", f.Key, value)
		}
	}
	c.world.log(history.Event{Kind: history.KindLog, Node: c.node, Run: run, Text: b.String()})
	return nil
}

func fieldText(f zapcore.Field) string {
	encoder := zapcore.NewMapObjectEncoder()
	f.AddTo(encoder)
	return fmt.Sprint(encoder.Fields[f.Key])
}

// runOf is the run that an actor's name names, if it is a run's.
func runOf(name string) string {
	run, _ := strings.CutPrefix(name, actors.KindRun+"/")
	if run == name {
		return ""
	}
	return run
}

// messageText names a message by its type; what it holds may be secret in
// production and is of no use here either.
func messageText(message any) string {
	return strings.TrimPrefix(fmt.Sprintf("%T", actor.UnwrapEnvelopeMessage(message)), "*")
}
