package imports_test

import (
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/errand-run/errand/tools/lint/imports"
)

func TestImports(t *testing.T) {
	const module = imports.Module
	analysistest.Run(t, analysistest.TestData(), imports.Analyzer,
		module+"/actors/run", module+"/actors/shell", module+"/cluster/host", module+"/cluster/store",
		module+"/nodes", module+"/nodes/journal", module+"/nodes/sandbox/null", module+"/nodes/sandbox/process",
		module+"/api", module+"/boot", module+"/cmd/node", module+"/cmd/simulate")
}
