package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
)

// row is one line of the table.
type row struct {
	Bench string `json:"bench"`
	What  string `json:"what"`
	Unit  string `json:"unit"`
	// Values are what the rounds have shown; what counts is their median. None means
	// that it was not measured.
	Values []float64 `json:"values"`
	// Bar is nil for a row that is only told.
	Bar *bar `json:"bar,omitempty"`
	// Note says how it was measured, or why it was not.
	Note string `json:"note,omitempty"`
	// Failed says what went wrong where there should have been a figure.
	Failed string `json:"failed,omitempty"`
}

// fail takes away what a row has and says why. The whole program fails with it.
func (r *row) fail(err error) {
	r.Values, r.Note, r.Failed = nil, "", strings.ReplaceAll(err.Error(), "\n", "; ")
}

// bar is what a row must reach.
type bar struct {
	Limit float64 `json:"limit"`
	// AtLeast means that more is better.
	AtLeast bool `json:"at_least"`
}

func atMost(limit float64) *bar  { return &bar{Limit: limit} }
func atLeast(limit float64) *bar { return &bar{Limit: limit, AtLeast: true} }

func (r row) median() float64 { return median(r.Values) }

// verdict is pass or short for a row with a bar.
func (r row) verdict() string {
	switch {
	case r.Failed != "":
		return "failed"
	case len(r.Values) == 0:
		return "not measured"
	case r.Bar == nil:
		return "-"
	case r.Bar.AtLeast && r.median() >= r.Bar.Limit, !r.Bar.AtLeast && r.median() <= r.Bar.Limit:
		return "pass"
	default:
		return "short"
	}
}

func (r row) bar() string {
	switch {
	case r.Bar == nil:
		return ""
	case r.Bar.AtLeast:
		return ">= " + figure(r.Bar.Limit)
	default:
		return "<= " + figure(r.Bar.Limit)
	}
}

// figure prints a number with three or more digits that mean something.
func figure(value float64) string {
	switch {
	case value >= 100 || value == float64(int64(value)):
		return fmt.Sprintf("%.0f", value)
	case value >= 10:
		return fmt.Sprintf("%.1f", value)
	default:
		return fmt.Sprintf("%.2f", value)
	}
}

func (r row) spread() string {
	if len(r.Values) < 2 {
		return ""
	}
	return figure(slices.Min(r.Values)) + " to " + figure(slices.Max(r.Values))
}

// machine names where the rows were measured.
type machine struct {
	CPU   string `json:"cpu"`
	Cores int    `json:"cores"`
	Go    string `json:"go"`
	// Kernel is its release; Load what else was at work when the rows were printed,
	// what was measured included.
	Kernel string `json:"kernel"`
	Load   string `json:"load"`
}

func thisMachine() machine {
	return machine{CPU: cpuModel(), Cores: runtime.NumCPU(), Go: runtime.Version(), Kernel: firstWord("/proc/sys/kernel/osrelease"), Load: load()}
}

func load() string { return firstWord("/proc/loadavg") }

func firstWord(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	word, _, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	return word
}

func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// printRows prints the table, or the same for programs.
func printRows(w io.Writer, output string, rows []row) error {
	m := thisMachine()
	if output == "json" {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(struct {
			Machine machine `json:"machine"`
			Rows    []row   `json:"rows"`
		}{m, rows})
	}
	fmt.Fprintf(w, "%s, %d cores, Linux %s, %s, load %s\n\n", m.CPU, m.Cores, m.Kernel, m.Go, m.Load)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "WHAT\tMEDIAN\tUNIT\tSPREAD\tBAR\tRESULT\tNOTE")
	for _, r := range rows {
		median := "-"
		if len(r.Values) > 0 {
			median = figure(r.median())
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.What, median, r.Unit, r.spread(), r.bar(), r.verdict(), r.Note+r.Failed)
	}
	return table.Flush()
}

// quantile returns the least of the values that so many percent of them do not exceed: of
// 200 the third largest is the 99th percentile.
func quantile(values []float64, percent int) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max((len(sorted)*percent+99)/100-1, 0)]
}

// median is the middle one, or the mean of the two.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}
