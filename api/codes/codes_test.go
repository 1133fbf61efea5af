package codes_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"github.com/errand-run/errand/api/codes"
)

// declared returns the words of the package's constants by their names.
func declared(t *testing.T) map[codes.Code]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "codes.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := map[codes.Code]string{}
	ast.Inspect(file, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Code" {
			word, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			if other := names[codes.Code(word)]; other != "" {
				t.Errorf("%s is the word of %s and of %s", word, other, spec.Names[0].Name)
			}
			names[codes.Code(word)] = spec.Names[0].Name
		}
		return true
	})
	return names
}

func TestEveryCodeIsInTheTableOnceButThoseOfTheClientsSide(t *testing.T) {
	left := declared(t)
	for _, own := range []codes.Code{codes.Unreachable, codes.NotANode, codes.Archive} {
		if _, known := codes.Of(own); known || left[own] == "" {
			t.Errorf("%s is of the client's own side: in the table %t, declared %t", own, known, left[own] != "")
		}
		delete(left, own)
	}
	for _, line := range codes.All() {
		if left[line.Code] == "" {
			t.Errorf("%s: twice in the table, or not declared", line.Code)
		}
		delete(left, line.Code)
		if line.Class == 0 || !strings.HasSuffix(line.Text, ".") {
			t.Errorf("%s: no class or no sentence", line.Code)
		}
		if found, ok := codes.Of(line.Code); !ok || found != line {
			t.Errorf("%s: found as %v", line.Code, found)
		}
	}
	if len(left) > 0 {
		t.Errorf("not in the table: %v", left)
	}
}

func TestTableOfCodesCanNotBeChangedByWhoReadsIt(t *testing.T) {
	codes.All()[0].Code = "OTHER"
	if codes.All()[0].Code == "OTHER" {
		t.Error("it was")
	}
	if _, ok := codes.Of("OTHER"); ok {
		t.Error("a code that is none was found")
	}
}
