// Command lint checks the rules that are Errand's own: who may import whom, and
// what a machine's turn may do. It is built here and run from the root of the
// repository: errand-lint ./...
package main

import (
	"golang.org/x/tools/go/analysis/multichecker"

	"github.com/errand-run/errand/tools/lint/imports"
	"github.com/errand-run/errand/tools/lint/turns"
)

func main() { multichecker.Main(imports.Analyzer, turns.Analyzer) }
