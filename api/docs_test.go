package api_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/errand-run/errand/api/codes"
)

var updateDocs = flag.Bool("update-docs", false, "write the table of codes into docs/api.md")

// The table of codes in the document is the one of the code.
func TestDocumentListsEveryCode(t *testing.T) {
	const path, begin, end = "../docs/api.md", "<!-- codes -->\n", "<!-- /codes -->"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	table.WriteString("| code | travels as | repeat | meaning |\n|---|---|---|---|\n")
	for _, line := range codes.All() {
		repeat := "no"
		if line.Repeat {
			repeat = "yes"
		}
		fmt.Fprintf(&table, "| `%s` | `%s` | %s | %s |\n", line.Code, line.Class, repeat, line.Text)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	listed, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", path)
	}
	if listed == table.String() {
		return
	}
	if !*updateDocs {
		t.Fatalf("%s lists other codes; run: go test ./api -run DocumentListsEveryCode -update-docs", path)
	}
	if err := os.WriteFile(path, []byte(before+begin+table.String()+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
