package boot

import (
	"os"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/term"
)

func parseLevel(level string) (zapcore.Level, error) { return zapcore.ParseLevel(level) }

// NewLog makes the daemon's log on standard error: readable on a terminal, JSON
// anywhere else.
func NewLog(level string) (*zap.Logger, error) {
	lowest, err := parseLevel(level)
	if err != nil {
		return nil, err
	}
	encoding := zap.NewProductionEncoderConfig()
	encoding.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	encoder := zapcore.NewJSONEncoder(encoding)
	if term.IsTerminal(int(os.Stderr.Fd())) {
		encoding = zap.NewDevelopmentEncoderConfig()
		encoding.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		encoding.EncodeLevel = zapcore.CapitalColorLevelEncoder
		encoder = zapcore.NewConsoleEncoder(encoding)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(os.Stderr), lowest)), nil
}
