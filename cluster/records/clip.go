package records

import (
	"strings"
	"unicode/utf8"
)

// Clip makes a text of somebody else's fit for a record: valid UTF-8 of at most so
// many bytes and the mark of what was left out.
func Clip(text string, bytesMax int) string {
	text = strings.ToValidUTF8(text, string(utf8.RuneError))
	if len(text) <= bytesMax {
		return text
	}
	return strings.ToValidUTF8(text[:bytesMax], "") + "…"
}
