package errand_test

import (
	"regexp"
	"strings"
	"testing"
)

var namedTest = regexp.MustCompile("`(Test[A-Za-z0-9]+)`")

// docs/cases.md promises a test for each case.
func TestCasesNameTestsThatExist(t *testing.T) {
	var sources strings.Builder
	for _, path := range files(t, ".go") {
		if strings.HasSuffix(path, "_test.go") {
			sources.Write(read(t, path))
		}
	}
	all, cases := sources.String(), 0
	for line := range strings.Lines(string(read(t, "docs/cases.md"))) {
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "| case ") || strings.HasPrefix(line, "|--") {
			continue
		}
		named := namedTest.FindAllStringSubmatch(line, -1)
		if cases++; len(named) == 0 {
			t.Errorf("a case without a test: %s", line)
		}
		for _, name := range named {
			if !strings.Contains(all, "\nfunc "+name[1]+"(t *testing.T) {") {
				t.Errorf("docs/cases.md names %s, which does not exist", name[1])
			}
		}
	}
	if cases == 0 {
		t.Fatal("docs/cases.md has no cases")
	}
}
