package boot

import (
	"strings"
	"testing"

	"github.com/errand-run/errand/cluster/records"
)

func TestNodeNameOfAHostName(t *testing.T) {
	for host, want := range map[string]string{
		"web1":                         "web1",
		"Web1.Example.COM":             "web1-example-com",
		"under_score":                  "under-score",
		"--odd--":                      "odd",
		"größe":                        "gr-e",
		"":                             "node",
		"...":                          "node",
		strings.Repeat("a", 200):       strings.Repeat("a", records.NameBytesMax),
		strings.Repeat("a", 62) + ".b": strings.Repeat("a", 62),
	} {
		got := nameOf(host)
		if got != want || records.CheckName(got) != nil {
			t.Errorf("nameOf(%q) = %q, %v; want %q", host, got, records.CheckName(got), want)
		}
	}
}
