package shell

import (
	"maps"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/errand-run/errand/actors"
)

func TestLineOfAnActorHasItsLevelAndFields(t *testing.T) {
	for _, test := range []struct {
		name  string
		line  actors.Log
		level zapcore.Level
		want  map[string]any
	}{
		{"without fields", actors.Log{Level: actors.LogWarn}, zapcore.WarnLevel, map[string]any{}},
		{
			"with fields",
			actors.Log{Level: actors.LogInfo, Fields: []any{"node", "n1", "attempt", int32(2), "took", time.Second}},
			zapcore.InfoLevel,
			map[string]any{"node": "n1", "attempt": int32(2), "took": time.Second},
		},
		{"an error", actors.Log{Level: actors.LogError, Fields: []any{"error", "no"}}, zapcore.ErrorLevel, map[string]any{"error": "no"}},
		{"below the level", actors.Log{Level: actors.LogDebug, Fields: []any{"a", 1}}, zapcore.InvalidLevel, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			core, lines := observer.New(zapcore.InfoLevel)
			test.line.Text = "text"
			writeLine(zap.New(core), "run/r1", test.line)
			if test.want == nil {
				if lines.Len() != 0 {
					t.Errorf("wrote %v", lines.All())
				}
				return
			}
			test.want["actor"] = "run/r1"
			line := lines.All()[0]
			if got := line.ContextMap(); line.Message != "text" || line.Level != test.level || !maps.Equal(got, test.want) {
				t.Errorf("%s %q %v, want %s %v", line.Level, line.Message, got, test.level, test.want)
			}
		})
	}
}

func TestLineWithAFieldWithoutANameIsWrittenAllTheSame(t *testing.T) {
	core, lines := observer.New(zapcore.InfoLevel)
	writeLine(zap.New(core), "run/r1", actors.Log{Level: actors.LogInfo, Fields: []any{"node", "n1", "alone"}})
	if got := lines.All()[0].ContextMap(); got["node"] != "n1" || got["unnamed"] == nil {
		t.Errorf("wrote %v", got)
	}
}

func TestLineBelowTheLevelAllocatesNothing(t *testing.T) {
	core, _ := observer.New(zapcore.ErrorLevel)
	log, line := zap.New(core), actors.Log{Level: actors.LogInfo, Text: "run placed", Fields: []any{"node", "n1"}}
	if n := testing.AllocsPerRun(100, func() { writeLine(log, "run/r1", line) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
