package records_test

import (
	"testing"
	"unicode/utf8"

	"github.com/errand-run/errand/cluster/records"
)

func TestClip(t *testing.T) {
	for _, c := range []struct {
		name, text string
		max        int
		want       string
	}{
		{"empty", "", 3, ""},
		{"as long as it may be", "abc", 3, "abc"},
		{"a byte too long", "abcd", 3, "abc…"},
		{"cut within a character", "abä", 3, "ab…"},
		{"not UTF-8", "a\xffb", 9, "a\ufffdb"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := records.Clip(c.text, c.max); got != c.want || !utf8.ValidString(got) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
