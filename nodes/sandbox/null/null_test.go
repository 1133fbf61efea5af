package null_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/conformance"
	"github.com/errand-run/errand/nodes/sandbox/null"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Harness {
		dir := t.TempDir()
		return conformance.Harness{
			Programmed: true,
			LogRoot:    t.TempDir(),
			Open: func(t *testing.T) sandbox.Driver {
				d, err := null.New(dir)
				if err != nil {
					t.Fatal(err)
				}
				return d
			},
			Leaks: func(t *testing.T) []string {
				left, err := filepath.Glob(filepath.Join(dir, "*"))
				if err != nil {
					t.Fatal(err)
				}
				return slices.DeleteFunc(left, func(path string) bool {
					info, err := os.Stat(path)
					return err == nil && info.Size() == 0
				})
			},
		}
	})
}
