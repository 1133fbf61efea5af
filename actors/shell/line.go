package shell

import (
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/errand-run/errand/actors"
)

// writeLine writes a line of an actor. One that is below the level costs nothing.
func writeLine(log *zap.Logger, actor string, line actors.Log) {
	entry := log.Check(levelOf(line.Level), line.Text)
	if entry == nil {
		return
	}
	fields := make([]zap.Field, 0, 1+(len(line.Fields)+1)/2)
	fields = append(fields, zap.String("actor", actor))
	for pair := range slices.Chunk(line.Fields, 2) {
		name, named := pair[0].(string)
		if !named || len(pair) == 1 {
			fields = append(fields, zap.Any("unnamed", pair))
			continue
		}
		fields = append(fields, zap.Any(name, pair[1]))
	}
	entry.Write(fields...)
}

func levelOf(level actors.LogLevel) zapcore.Level {
	switch level {
	case actors.LogDebug:
		return zapcore.DebugLevel
	case actors.LogInfo:
		return zapcore.InfoLevel
	case actors.LogWarn:
		return zapcore.WarnLevel
	default:
		return zapcore.ErrorLevel
	}
}
