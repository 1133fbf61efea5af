package cli

import (
	"strings"
	"testing"
)

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{
		"1": 1, "64MiB": 64 << 20, "512M": 512 << 20, "512m": 512 << 20, "1.5GiB": 3 << 29, "1Ki": 1024, "1kB": 1000, "2 GB": 2e9, "100B": 100, "1T": 1 << 40,
		"": 0, "0": 0, "-1": 0, "M": 0, "1.2.3M": 0, "1e3": 0, ".5G": 0, "5.": 0, "0x10": 0, "1MiBs": 0, "inf": 0, "NaN": 0, "99999999999T": 0, "0.1B": 0,
	} {
		got, err := parseSize(text)
		if (err == nil) != (want > 0) || err == nil && got != want {
			t.Errorf("parseSize(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
}

func TestParseCPU(t *testing.T) {
	for text, want := range map[string]int64{
		"1": 1000, "0.5": 500, "500m": 500, "1.25": 1250, "0.001": 1, "1.000": 1000, "0.10000": 100, "64": 64000,
		"": 0, "0": 0, "0m": 0, "-1": 0, "m": 0, "0.0001": 0, "1e3": 0, ".5": 0, "5.": 0, "+5m": 0, "1.5m": 0, "99999999999999999999": 0, "9999999999": 0,
	} {
		got, err := parseCPU(text)
		if (err == nil) != (want > 0) || err == nil && got != want {
			t.Errorf("parseCPU(%q) = %d, %v; want %d", text, got, err, want)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	for _, seed := range []string{"64MiB", "1.5G", "0", "-1", "9e99", "1.T"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if size, err := parseSize(text); err == nil && size < 1 {
			t.Errorf("parseSize(%q) = %d", text, size)
		}
	})
}

func FuzzParseCPU(f *testing.F) {
	for _, seed := range []string{"0.5", "500m", "0", "-1", "1.0000", "1."} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if millis, err := parseCPU(text); err == nil && millis < 1 {
			t.Errorf("parseCPU(%q) = %d", text, millis)
		}
	})
}

func FuzzReadEnvFile(f *testing.F) {
	for _, seed := range []string{"A=1\nB=x y\n", "# c\n\nA\n", "=x", "\xef\xbb\xbfA=1\r\n", "A=\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, content string) {
		env := map[string]string{}
		a := &app{environ: map[string]string{"A": "own"}}
		if a.readEnvFile("f", []byte(content), env) != nil {
			return
		}
		for name, value := range env {
			if name == "" || strings.ContainsAny(name, "= \x00\n") || !validText(name) || !validText(value) || strings.Contains(value, "\n") {
				t.Errorf("%q gave %q=%q", content, name, value)
			}
		}
	})
}

func TestCellsKeepToTheirLine(t *testing.T) {
	if got := cellText("a\nb\x1b[31m\tc\u009bd"); got != "a b\ufffd[31m c\ufffdd" {
		t.Errorf("%q", got)
	}
}
