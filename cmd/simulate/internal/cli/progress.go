package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// progressEvery is how often the bar is drawn, barWidth how wide it is.
const (
	progressEvery = 200 * time.Millisecond
	barWidth      = 30
)

// progress draws a bar on a terminal, and nothing anywhere else.
type progress struct {
	done    chan struct{}
	drawing sync.WaitGroup
}

func startProgress(out io.Writer, total uint64, found *tally) *progress {
	p := &progress{done: make(chan struct{})}
	if !isTerminal(out) {
		return p
	}
	began := time.Now()
	p.drawing.Go(func() {
		ticker := time.NewTicker(progressEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				fmt.Fprint(out, "\r"+bar(found.executed.Load(), total, time.Since(began), time.Duration(found.virtual.Load())))
			case <-p.done:
				fmt.Fprint(out, "\r\x1b[K")
				return
			}
		}
	})
	return p
}

// stop takes the bar away and waits for whoever draws it.
func (p *progress) stop() {
	close(p.done)
	p.drawing.Wait()
}

func bar(executed, total uint64, took, virtual time.Duration) string {
	filled := int(min(executed*barWidth/max(total, 1), barWidth))
	seconds := max(took.Seconds(), 0.001)
	return fmt.Sprintf("[%s%s] %d/%d  %.1f seeds/s  %.0fx real time\x1b[K",
		strings.Repeat("#", filled), strings.Repeat(".", barWidth-filled), executed, total, float64(executed)/seconds, virtual.Seconds()/seconds)
}

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}
