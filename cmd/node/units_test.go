package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var unitBlock = regexp.MustCompile("(?s)```ini\n(.*?)```")

// What the documented units must say, and why.
var unitSettings = map[string]map[string]string{
	"../../docs/install.md": {
		"Unit/StartLimitIntervalSec": "0",        // or five failures within ten seconds end it for good
		"Service/Type":               "notify",   // active means that runs are taken
		"Service/Restart":            "always",   //
		"Service/KillMode":           "process",  // or a stop ends the sandboxes
		"Service/TasksMax":           "infinity", // shims count against the unit
		"Service/TimeoutStartSec":    "infinity", // a large store takes its time
		"Service/ExecStart":          "/usr/local/bin/errand-node",
	},
	"../../docs/operations.md": {
		"Service/ExecStart": "/usr/local/bin/errand-node guard",
		"Service/Restart":   "always",
	},
}

func TestDocumentedUnitsSayWhatTheyMust(t *testing.T) {
	for path, want := range unitSettings {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		blocks := unitBlock.FindAllStringSubmatch(string(text), -1)
		if len(blocks) != 1 {
			t.Fatalf("%s has %d units, want one", path, len(blocks))
		}
		got, section := map[string]string{}, ""
		for line := range strings.Lines(blocks[0][1]) {
			line = strings.TrimSpace(line)
			key, value, isSetting := strings.Cut(line, "=")
			switch {
			case line == "" || strings.HasPrefix(line, "#"):
			case strings.HasPrefix(line, "["):
				section = strings.Trim(line, "[]")
			case !isSetting || section == "":
				t.Errorf("%s: %q is no setting", path, line)
			default:
				got[section+"/"+key] = value
			}
		}
		for key, value := range want {
			if got[key] != value {
				t.Errorf("%s: %s is %q, want %q", path, key, got[key], value)
			}
		}
	}
}
