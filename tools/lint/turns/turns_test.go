package turns_test

import (
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/errand-run/errand/tools/lint/imports"
	"github.com/errand-run/errand/tools/lint/turns"
)

func TestTurns(t *testing.T) {
	const module = imports.Module
	analysistest.Run(t, analysistest.TestData(), turns.Analyzer,
		module+"/actors/run", module+"/nodes", module+"/cluster/host")
}
