package world

import (
	"fmt"
	"slices"
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
// given. The stack of a panic, whose addresses differ, is left out, and so are the run,
// which the event names, and the actor if it is the run's.
func (c *logCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	if strings.HasSuffix(e.LoggerName, "protoactor") {
		return nil // it names its system by chance
	}
	var b strings.Builder
	b.WriteString(e.Level.String())
	b.WriteByte(' ')
	b.WriteString(e.Message)
	all := slices.Concat(c.fields, fields)
	run := ""
	for _, f := range all {
		if f.Key == "run" {
			run = fieldText(f)
		}
	}
	for _, f := range all {
		value := fieldText(f)
		switch {
		case f.Key == "stack", f.Key == "run":
		case f.Key == "actor" && run != "" && strings.Contains(value, actors.KindRun+"/"+run):
		default:
			fmt.Fprintf(&b, " %s=%s", f.Key, strings.TrimPrefix(value, activatorPrefix))
		}
	}
	c.world.log(history.Event{Kind: history.KindLog, Node: c.node, Run: run, Text: b.String()})
	return nil
}

// activatorPrefix is what the names of all actors of a node begin with.
const activatorPrefix = "activator/"

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
// production and is of no use here either. What an actor has from its own shell says
// which of its effects or timers it is about.
func messageText(message any) string {
	message = actor.UnwrapEnvelopeMessage(message)
	switch message.(type) {
	case *actor.Started:
		return "its start"
	case *actor.Stop:
		return "its stop"
	}
	if of, ok := message.(interface{ About() string }); ok {
		return of.About()
	}
	return strings.TrimPrefix(strings.TrimPrefix(fmt.Sprintf("%T", message), "*"), "actorv1.")
}
