package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

// outputFormat is the value of --output.
type outputFormat string

const (
	formatTable outputFormat = "table"
	formatJSON  outputFormat = "json"
	formatYAML  outputFormat = "yaml"
)

func (f *outputFormat) String() string { return string(*f) }
func (f *outputFormat) Type() string   { return "format" }

func (f *outputFormat) Set(value string) error {
	switch format := outputFormat(value); format {
	case formatTable, formatJSON, formatYAML:
		*f = format
		return nil
	default:
		return fmt.Errorf("must be table, json or yaml")
	}
}

// print writes a value as JSON or YAML, or calls table for people.
func (a *app) print(value any, table func() error) error {
	switch a.output {
	case formatJSON:
		encoder := json.NewEncoder(a.stdout)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		return wrote(encoder.Encode(value))
	case formatYAML:
		document, err := yaml.Marshal(value)
		if err != nil {
			return broken(codeInternal, "write YAML: %s", err)
		}
		_, err = a.stdout.Write(document)
		return wrote(err)
	default:
		return wrote(table())
	}
}

// wrote turns an error of stdout into a failure.
func wrote(err error) error {
	if err == nil {
		return nil
	}
	return broken(codeOutput, "write to stdout: %s", reasonOf(err))
}

// output is stdout for who else writes to it: what can not be written is a failure, and
// is remembered.
type output struct {
	w   io.Writer
	err error
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if err != nil {
		o.err = wrote(err)
	}
	return n, o.err
}

// style is how a table may look where it goes.
type style struct {
	colour bool
	width  int // columns; 0 means no limit
	// short shows the beginnings of ids: a person copies what is enough, a script takes
	// what is whole.
	short bool
}

func (a *app) style() style {
	file, ok := a.stdout.(*os.File)
	if !ok {
		return style{}
	}
	width := terminalWidth(file)
	if width == 0 {
		return style{}
	}
	s := style{colour: a.environ["NO_COLOR"] == "" && a.environ["TERM"] != "dumb", width: width, short: true}
	if a.whole {
		s.width, s.short = 0, false
	}
	return s
}

// shortIDRunes is how much of the last part of an id a terminal shows: at 60 bits of it
// two are not alike.
const shortIDRunes = 12

// runID is a run's id as a table shows it. The beginning of its last part finds it.
func (s style) runID(id string) string {
	last := id[strings.LastIndexByte(id, '.')+1:]
	if !s.short || len(last) <= shortIDRunes {
		return id
	}
	return last[:shortIDRunes]
}

// registerWhole declares the flag for tables that are not cut.
func (a *app) registerWhole(flags *pflag.FlagSet) {
	flags.BoolVar(&a.whole, "no-trunc", false, "at a terminal, show whole ids and cut nothing")
}

// terminalWidth is 0 for what is no terminal.
func terminalWidth(file *os.File) int {
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	if size.Col == 0 {
		return 80
	}
	return int(size.Col)
}

const columnGap = "   "

// writeTable aligns the columns, colours the words of statuses and cuts the last
// column where the terminal ends.
func writeTable(w io.Writer, s style, header []string, rows [][]string) error {
	return newTable(w, s, header).write(rows)
}

// table writes rows below a header. The columns are as wide as the widest cell so far:
// rows that come later may move them, none waits for what is still to come.
type table struct {
	w      io.Writer
	style  style
	header []string
	widths []int
}

func newTable(w io.Writer, s style, header []string) *table {
	return &table{w: w, style: s, header: header, widths: make([]int, len(header))}
}

func (t *table) write(rows [][]string) error {
	headed := t.header != nil
	if headed {
		rows = append([][]string{t.header}, rows...)
		t.header = nil
	}
	for _, row := range rows {
		for i, cell := range row {
			row[i] = cellText(cell)
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	for number, row := range rows {
		if _, err := io.WriteString(t.w, t.line(row, headed && number == 0)+"\n"); err != nil {
			return err
		}
	}
	return nil
}

func (t *table) line(row []string, header bool) string {
	var text strings.Builder
	used := 0
	for i, cell := range row {
		last := i == len(row)-1
		if last && t.style.width > used {
			cell = cut(cell, t.style.width-used)
		}
		pad := t.widths[i] - utf8.RuneCountInString(cell)
		if t.style.colour && !header {
			cell = coloured(cell)
		}
		text.WriteString(cell)
		if !last {
			text.WriteString(strings.Repeat(" ", pad) + columnGap)
			used += t.widths[i] + len(columnGap)
		}
	}
	return strings.TrimRight(text.String(), " ")
}

// cellText keeps a cell on its line.
func cellText(cell string) string {
	if cell == "" {
		return "-"
	}
	return strings.NewReplacer("\n", " ", "\t", " ").Replace(printable(cell))
}

func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	runes := []rune(text)
	if width <= 1 {
		return string(runes[:max(width, 0)])
	}
	return string(runes[:width-1]) + "…"
}

var colours = map[string]string{
	"PENDING": "33", "RUNNING": "36", "SUCCEEDED": "32", "FAILED": "31",
	"TIMED_OUT": "31", "CANCELED": "35", "SKIPPED": "90",
}

func coloured(cell string) string {
	first, rest, _ := strings.Cut(cell, " ")
	colour, ok := colours[first]
	if !ok {
		return cell
	}
	if rest != "" {
		rest = " " + rest
	}
	return "\x1b[" + colour + "m" + first + "\x1b[0m" + rest
}

// ago is a time for people: how long before now.
func ago(now time.Time, at *time.Time) string {
	if at == nil {
		return ""
	}
	// Clocks of two machines differ; the future is not worth a word here.
	return span(max(now.Sub(*at), 0)) + " ago"
}

// span is a duration for people, in its largest sensible unit.
func span(d time.Duration) string {
	switch {
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + "ms"
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Truncate(100*time.Millisecond).Seconds(), 'f', -1, 64) + "s"
	case d < 2*time.Minute:
		return strconv.FormatInt(int64(d/time.Second), 10) + "s"
	case d < 2*time.Hour:
		return strconv.FormatInt(int64(d/time.Minute), 10) + "m"
	case d < 48*time.Hour:
		return strconv.FormatInt(int64(d/time.Hour), 10) + "h"
	default:
		return strconv.FormatInt(int64(d/(24*time.Hour)), 10) + "d"
	}
}

// bytesText is a size for people.
func bytesText(size int64) string {
	if size < 1024 {
		return strconv.FormatInt(size, 10) + " B"
	}
	value, unit := float64(size), 0
	for value >= 1024 && unit < 4 {
		value, unit = value/1024, unit+1
	}
	return strconv.FormatFloat(value, 'f', 1, 64) + " " + []string{"B", "KiB", "MiB", "GiB", "TiB"}[unit]
}
