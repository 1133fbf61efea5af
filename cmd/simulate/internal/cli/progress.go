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

// progressEvery is how often the bar is drawn, barWidthMax how wide it is where there
// is room.
const (
	progressEvery = 200 * time.Millisecond
	barWidthMax   = 30
	barWidthMin   = 8
)

// widthDefault is that of a terminal that does not know its own.
const widthDefault = 80

// progress draws a bar on a terminal, and nothing anywhere else.
type progress struct {
	out     io.Writer
	done    chan struct{}
	drawing sync.WaitGroup
	// mu lets one of the bar and of what is told meanwhile be written at a time.
	mu sync.Mutex
}

func startProgress(out io.Writer, total uint64, found *tally) *progress {
	p := &progress{out: out, done: make(chan struct{})}
	if terminalWidth(out) == 0 {
		return p
	}
	began := time.Now()
	p.drawing.Go(func() {
		ticker := time.NewTicker(progressEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				line := bar(found.state(total, time.Since(began)), terminalWidth(out))
				p.mu.Lock()
				fmt.Fprint(out, "\r"+line+"\x1b[K")
				p.mu.Unlock()
			case <-p.done:
				return
			}
		}
	})
	return p
}

// without lets something be told where the bar is.
func (p *progress) without(tell func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	tell()
}

func (p *progress) clear() {
	if terminalWidth(p.out) > 0 {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}

// stop takes the bar away and waits for whoever draws it.
func (p *progress) stop() {
	close(p.done)
	p.drawing.Wait()
	p.clear()
}

// state is how far a sweep has come.
type state struct {
	executed, total, failures uint64
	took, virtual             time.Duration
}

// bar is a line about a sweep for a terminal of some width: what does not fit is left
// out from the end on, the bar first.
func bar(s state, width int) string {
	seconds := max(s.took.Seconds(), 0.001)
	total := max(s.total, 1)
	words := []string{
		fmt.Sprintf("%d/%d", s.executed, s.total),
		fmt.Sprintf("%.1f seeds/s", float64(s.executed)/seconds),
		fmt.Sprintf("%.0fx real time", s.virtual.Seconds()/seconds),
	}
	if s.failures > 0 {
		words = append(words[:1], append([]string{fmt.Sprintf("%d failed", s.failures)}, words[1:]...)...)
	}
	words = append(words, s.took.Round(time.Second).String())
	if s.executed > 0 {
		left := time.Duration(float64(s.took) / float64(s.executed) * float64(total-min(s.executed, total)))
		words = append(words, left.Round(time.Second).String()+" left")
	}
	line := words[0]
	for _, word := range words[1:] {
		if len(line)+2+len(word) < width {
			line += "  " + word
		}
	}
	if length := min(width-len(line)-len("[] ")-1, barWidthMax); length >= barWidthMin {
		filled := int(min(s.executed*uint64(length)/total, uint64(length)))
		line = "[" + strings.Repeat("#", filled) + strings.Repeat(".", length-filled) + "] " + line
	}
	return line[:max(min(len(line), width-1), 0)]
}

// terminalWidth is how many columns a terminal has; 0 means that it is none.
func terminalWidth(out io.Writer) int {
	file, ok := out.(*os.File)
	if !ok {
		return 0
	}
	if _, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS); err != nil {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 {
		return widthDefault
	}
	return int(size.Col)
}
