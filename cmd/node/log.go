package main

import (
	"bytes"
	"os"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/term"
)

// newLog makes the daemon's log on standard error: readable on a terminal, JSON
// anywhere else. A level that is none was refused before.
func newLog(level string) *zap.Logger { return logTo(zapcore.Lock(os.Stderr), level) }

// linesMax is how many lines of a guard's log may wait for whoever reads them.
const linesMax = 256

// newGuardLog makes a log whose reader may be stuck: a guard waits for nobody, so what
// can not be written in time is dropped. done writes what is left, for no longer than
// a second.
func newGuardLog(level string) (log *zap.Logger, done func()) {
	lines := make(chan []byte, linesMax)
	written := make(chan struct{})
	go func() {
		defer close(written)
		for line := range lines {
			_, _ = os.Stderr.Write(line) // there is nobody to tell
		}
	}()
	log = logTo(zapcore.Lock(dropping(lines)), level)
	return log, func() {
		close(lines)
		select {
		case <-written:
		case <-time.After(time.Second):
		}
	}
}

// dropping hands lines over to whoever writes them.
type dropping chan<- []byte

// Write never blocks and never fails.
func (d dropping) Write(line []byte) (int, error) {
	select {
	case d <- bytes.Clone(line):
	default:
	}
	return len(line), nil
}

// Sync does nothing.
func (d dropping) Sync() error { return nil }

func logTo(w zapcore.WriteSyncer, level string) *zap.Logger {
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
	return zap.New(zapcore.NewCore(encoder, w, lowest))
}
