package main

import (
	"os"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/term"
)

// newLog makes the daemon's log on standard error: readable on a terminal, JSON
// anywhere else. A level that is none was refused before.
func newLog(level string) *zap.Logger {
	lowest, err := zapcore.ParseLevel(level)
	if err != nil {
		lowest = zapcore.InfoLevel
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
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(os.Stderr), lowest))
}
