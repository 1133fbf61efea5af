package main

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/errand-run/errand/boot"
)

func TestFlagOutranksVariableOutranksFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "node.toml")
	text := "data = \"/from/file\"\nname = \"file\"\nlog-level = \"error\"\nsandboxes-max = 7\ndrivers = [\"process\", \"null\"]\ndev = true\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	asked, err := parse([]string{"--data", "/from/flag"}, []string{"ERRAND_CONFIG=" + file, "ERRAND_DATA=/from/env", "ERRAND_NAME=env"})
	if err != nil {
		t.Fatal(err)
	}
	c := asked.config
	if c.DataDir != "/from/flag" || c.Name != "env" || asked.logLevel != "error" || c.SandboxesMax != 7 || !c.Dev || strings.Join(c.Drivers, ",") != "process,null" {
		t.Fatalf("got %+v", c)
	}
}

func TestFlagDefaultsAreThoseOfTheConfiguration(t *testing.T) {
	asked, err := parse(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	byFlags, err := asked.config.Complete()
	if err != nil {
		t.Fatal(err)
	}
	byZero, err := boot.Config{}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	byFlags.EtcdEndpoints = nil // a flag's empty list is not nil
	if !reflect.DeepEqual(byFlags, byZero) {
		t.Fatalf("flags give\n%+v\nthe configuration\n%+v", byFlags, byZero)
	}
}

func TestBadSettingsAreRefusedByName(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, test := range []struct {
		name              string
		args, environment []string
		says              string
	}{
		{name: "unknown flag", args: []string{"--nope"}, says: "nope"},
		{name: "argument", args: []string{"start"}, says: "start"},
		{name: "not a number", args: []string{"--shards", "many"}, says: "shards"},
		{name: "zero", args: []string{"--sandboxes-max", "0"}, says: "sandboxes-max"},
		{name: "variable", environment: []string{"ERRAND_SHARDS=many"}, says: "ERRAND_SHARDS"},
		{name: "file absent", args: []string{"--config", filepath.Join(dir, "absent")}, says: "absent"},
		{name: "file is not TOML", args: []string{"--config", write("bad", "= 1")}, says: "bad"},
		{name: "unknown key", args: []string{"--config", write("key", "listne = 1")}, says: "listne"},
		{name: "key that is no setting", args: []string{"--config", write("help", "help = true")}, says: "help"},
		{name: "not a number, in words", args: []string{"--shards", "many"}, says: "flag: must be a whole number"},
		{name: "number out of range", args: []string{"--shards", "9999999999"}, says: "flag: is out of range"},
		{name: "truth in words", args: []string{"--dev=often"}, says: "flag: must be true or false"},
		{name: "variable in words", environment: []string{"ERRAND_SHARDS=many"}, says: `ERRAND_SHARDS: invalid value "many": must be a whole number`},
		{name: "table for a string", args: []string{"--config", write("table", "[listen]\nx = 1")}, says: "listen: must be a string"},
		{name: "number for a string", args: []string{"--config", write("number", "name = 7")}, says: "name: must be a string"},
		{name: "list for a string", args: []string{"--config", write("list", "data = [\"/a\"]")}, says: "data: must be a string"},
		{name: "truth for a number", args: []string{"--config", write("truth", "shards = true")}, says: "shards: must be a whole number"},
		{name: "fraction for a number", args: []string{"--config", write("fraction", "shards = 1.5")}, says: "shards: must be a whole number"},
		{name: "number for a truth", args: []string{"--config", write("dev", "dev = 1")}, says: "dev: must be true or false"},
		{name: "numbers for a list", args: []string{"--config", write("drivers", "drivers = [1, 2]")}, says: "drivers: must be a list of strings"},
		{name: "table for a list", args: []string{"--config", write("drivers2", "[drivers]\nx = 1")}, says: "drivers: must be a list of strings"},
		{name: "value of a file", args: []string{"--config", write("value", "shards = \"x\"")}, says: "shards"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := parse(test.args, test.environment); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Fatalf("got %v; want the word %q", err, test.says)
			}
		})
	}
}

func TestHelpAndVersionServeNothing(t *testing.T) {
	for _, flag := range []string{"--help", "-h", "--version", "version"} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), []string{flag}, nil, &stdout, &stderr); code != exitOK || stdout.Len() == 0 || stderr.Len() > 0 {
			t.Errorf("%s: code %d, stdout %q, stderr %q", flag, code, &stdout, &stderr)
		}
	}
}
