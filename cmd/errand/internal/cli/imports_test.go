package cli

import (
	"os/exec"
	"strings"
	"testing"
)

// The command line is one small program that any machine can have: it knows the
// public API and nothing of the engine.
func TestErrandImportsOnlyTheClientAndTheMessagesOfTheProject(t *testing.T) {
	output, err := exec.Command("go", "list", "-deps", "github.com/errand-run/errand/cmd/errand").Output()
	if err != nil {
		t.Fatal(err)
	}
	const module = "github.com/errand-run/errand/"
	seen := 0
	for _, path := range strings.Fields(string(output)) {
		rest, ours := strings.CutPrefix(path, module)
		if !ours {
			continue
		}
		seen++
		// authfile reads one file format and imports nothing.
		if strings.HasSuffix(rest, "/images/authfile") {
			continue
		}
		if !strings.HasPrefix(rest, "messages/errand/v1") && !strings.HasPrefix(rest, "cmd/errand") && rest != "api/client" && rest != "api/codes" {
			t.Errorf("errand imports %s", rest)
		}
	}
	if seen == 0 {
		t.Error("no package of the project was seen")
	}
}
