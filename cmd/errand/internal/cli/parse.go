package cli

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// The types below are flag values. Set returns only why a value is refused: the
// flag library adds the flag's name and what was typed.

// durationValue is a duration in Go's form, as in 1h30m.
type durationValue struct {
	value time.Duration
	set   bool
	zero  bool // whether 0 is allowed
	// most is what the node takes, for the text about a value that no duration can hold.
	most time.Duration
}

// The most that a node takes.
const (
	timeoutMost   = 366 * 24 * time.Hour
	stopGraceMost = 24 * time.Hour
)

// durationForm is what is a duration but for its size.
var durationForm = regexp.MustCompile(`^[+-]?((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+$`)

func (d *durationValue) Type() string { return "duration" }

func (d *durationValue) String() string {
	if !d.set {
		return ""
	}
	return d.value.String()
}

func (d *durationValue) Set(text string) error {
	value, err := time.ParseDuration(text)
	if err != nil && durationForm.MatchString(text) {
		most := cmp.Or(d.most, math.MaxInt64).Truncate(time.Hour)
		return fmt.Errorf("too long: the most is %dh", int64(most.Hours()))
	}
	if err != nil {
		return errors.New("not a duration: write it as in 90s, 10m or 1h30m")
	}
	if value < 0 {
		return errors.New("must not be negative")
	}
	if value == 0 && !d.zero {
		return errors.New("must be above 0")
	}
	d.value, d.set = value, true
	return nil
}

// sizeValue is a number of bytes.
type sizeValue int64

func (s *sizeValue) Type() string { return "size" }

func (s *sizeValue) String() string {
	if *s == 0 {
		return ""
	}
	return strconv.FormatInt(int64(*s), 10)
}

func (s *sizeValue) Set(text string) error {
	size, err := parseSize(text)
	*s = sizeValue(size)
	return err
}

var sizeUnits = map[string]float64{
	"": 1, "b": 1,
	"k": 1 << 10, "ki": 1 << 10, "kib": 1 << 10, "kb": 1e3,
	"m": 1 << 20, "mi": 1 << 20, "mib": 1 << 20, "mb": 1e6,
	"g": 1 << 30, "gi": 1 << 30, "gib": 1 << 30, "gb": 1e9,
	"t": 1 << 40, "ti": 1 << 40, "tib": 1 << 40, "tb": 1e12,
}

var errSize = errors.New("not a size: write it as in 64MiB, 512M or 1.5G (K, M, G and T count by 1024, KB, MB, GB and TB by 1000)")

// parseSize reads a size above 0.
func parseSize(text string) (int64, error) {
	end := strings.LastIndexAny(text, "0123456789.") + 1
	number, unit := text[:end], strings.ToLower(strings.TrimSpace(text[end:]))
	scale, known := sizeUnits[unit]
	if !known || !decimal(number) {
		return 0, errSize
	}
	value, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0, errSize
	}
	size := math.Round(value * scale)
	if size < 1 {
		return 0, errors.New("must be above 0")
	}
	if size >= math.MaxInt64 {
		return 0, errors.New("larger than any machine")
	}
	return int64(size), nil
}

// decimal tells whether text is digits with at most one point between them.
func decimal(text string) bool {
	whole, part, point := strings.Cut(text, ".")
	return digits(whole) && (!point || digits(part))
}

func digits(text string) bool {
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return false
		}
	}
	return text != ""
}

// cpuValue is thousandths of a core.
type cpuValue int64

func (c *cpuValue) Type() string { return "cores" }

func (c *cpuValue) String() string {
	if *c == 0 {
		return ""
	}
	return strconv.FormatInt(int64(*c), 10) + "m"
}

func (c *cpuValue) Set(text string) error {
	millis, err := parseCPU(text)
	*c = cpuValue(millis)
	return err
}

// parseCPU reads cores (0.5) or thousandths of them (500m), above 0.
func parseCPU(text string) (int64, error) {
	errCPU := errors.New("not a number of cores: write it as in 0.5, 2 or 500m")
	var millis int64
	if number, ok := strings.CutSuffix(text, "m"); ok {
		value, err := strconv.ParseInt(number, 10, 64)
		if err != nil || !digits(number) {
			return 0, errCPU
		}
		millis = value
	} else {
		whole, part, _ := strings.Cut(text, ".")
		if !decimal(text) {
			return 0, errCPU
		}
		if part = strings.TrimRight(part, "0"); len(part) > 3 {
			return 0, errors.New("finer than a thousandth of a core")
		}
		// Digits moved by three places, so that no rounding can occur.
		value, err := strconv.ParseInt(whole+part+strings.Repeat("0", 3-len(part)), 10, 64)
		if err != nil {
			return 0, errCPU
		}
		millis = value
	}
	if millis <= 0 {
		return 0, errors.New("must be above 0")
	}
	if millis > math.MaxInt32*int64(1000) {
		return 0, errors.New("more cores than any machine has")
	}
	return millis, nil
}

// parseLabels reads repeated K=V values of a flag.
func parseLabels(flag string, values []string) (map[string]string, error) {
	if len(values) == 0 {
		return nil, nil
	}
	labels := make(map[string]string, len(values))
	for _, text := range values {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return nil, usage("%s %q: write it as key=value", flag, text)
		}
		if _, twice := labels[key]; twice {
			return nil, usage("%s %s is given twice", flag, key)
		}
		if err := checkText(flag, text); err != nil {
			return nil, err
		}
		labels[key] = value
	}
	return labels, nil
}

// parseSince reads how long ago (10m) or when (RFC 3339).
func parseSince(now time.Time, text string) (time.Time, error) {
	if back, err := time.ParseDuration(text); err == nil {
		if back < 0 {
			return time.Time{}, usage("--since %s: must not be negative", text)
		}
		return now.Add(-back), nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, usage("--since %q: give a duration as in 10m, or a time as in %s", text, "2026-01-02T15:04:05Z")
	}
	return at, nil
}

// checkText refuses what the API can not carry. It does not repeat the text,
// which may be a secret.
func checkText(what, text string) error {
	if !validText(text) {
		return usage("%s: holds a NUL character or is not valid UTF-8", what)
	}
	return nil
}

func checkCommand(command []string) error {
	for i, argument := range command {
		if err := checkText(fmt.Sprintf("argument %d of the command", i), argument); err != nil {
			return err
		}
	}
	return nil
}
