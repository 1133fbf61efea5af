// Package errand_test checks the repository as a whole: what holds for every file
// and belongs to no package.
package errand_test

import (
	"bytes"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// linesMax is how long a Go file may be that people write.
const linesMax = 500

// notOurs are what is built and what belongs to git, whose .git is a file in a
// worktree.
var notOurs = []string{".git", ".cache", "bin"}

var banner = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// files returns the paths of the repository's files that have one of the
// extensions, all of them without any, in order.
func files(t *testing.T, extensions ...string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case slices.Contains(notOurs, entry.Name()):
			if entry.IsDir() {
				return fs.SkipDir
			}
		case entry.Type().IsRegular() && (len(extensions) == 0 || slices.Contains(extensions, filepath.Ext(path))):
			found = append(found, filepath.ToSlash(path))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		t.Fatalf("no files with %v", extensions)
	}
	return found
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.FromSlash(path))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func isGenerated(path string) bool {
	return strings.HasSuffix(path, ".pb.go") || strings.HasSuffix(path, ".connect.go")
}

func TestGoFilesAreShort(t *testing.T) {
	for _, path := range files(t, ".go") {
		if lines := bytes.Count(read(t, path), []byte("\n")); lines > linesMax && !isGenerated(path) {
			t.Errorf("%s has %d lines, more than %d: split it by concept", path, lines, linesMax)
		}
	}
}

func TestPackagesHaveAComment(t *testing.T) {
	commented := map[string]bool{}
	for _, path := range files(t, ".go") {
		if strings.Contains(path, "testdata/") || strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Error(err)
			continue
		}
		folder := filepath.ToSlash(filepath.Dir(path))
		text := file.Doc.Text()
		good := strings.HasPrefix(text, "Package "+file.Name.Name+" ") ||
			file.Name.Name == "main" && strings.HasPrefix(text, "Command ") ||
			strings.HasSuffix(path, ".connect.go") // its comment is that of the proto package
		commented[folder] = commented[folder] || good
	}
	for folder, good := range commented {
		if !good {
			t.Errorf("%s has no comment that begins with Package or Command and its name", folder)
		}
	}
}

func TestGeneratedFilesSaySo(t *testing.T) {
	for _, path := range files(t, ".go") {
		head, _, _ := bytes.Cut(read(t, path), []byte("\npackage "))
		if says := banner.Match(head); says != isGenerated(path) && !strings.Contains(path, "testdata/") {
			t.Errorf("%s: says that it is generated: %v, is: %v", path, says, isGenerated(path))
		}
	}
	for _, path := range files(t, ".proto") {
		if _, err := os.Stat(strings.TrimSuffix(path, ".proto") + ".pb.go"); err != nil {
			t.Errorf("%s: make generate: %v", path, err)
		}
	}
}

// machineWords are words that belong to somebody's machine. They are put together
// here so that this file does not hold them itself.
func machineWords(t *testing.T) []string {
	t.Helper()
	words := []string{"/wo" + "rk/", "/tmp/bri" + "ef", "/home/" + "runner", "/Us" + "ers/"}
	proxies, err := exec.Command("go", "env", "GOPROXY").Output()
	if err != nil {
		t.Fatalf("go env: %v", err)
	}
	for _, proxy := range strings.FieldsFunc(string(proxies), func(r rune) bool { return strings.ContainsRune(",| \n", r) }) {
		address, err := url.Parse(proxy)
		if err == nil && address.Hostname() != "" && address.Hostname() != "proxy.golang.org" {
			words = append(words, address.Hostname())
		}
	}
	return words
}

func TestNoMachineIsNamed(t *testing.T) {
	words := machineWords(t)
	for _, path := range files(t) {
		content := read(t, path)
		if bytes.IndexByte(content[:min(len(content), 8000)], 0) >= 0 {
			continue // not text
		}
		for _, word := range words {
			if i := bytes.Index(content, []byte(word)); i >= 0 {
				t.Errorf("%s:%d names something of one machine: %q", path, 1+bytes.Count(content[:i], []byte("\n")), word)
			}
		}
	}
}

var link = regexp.MustCompile(`\]\(([^()\s]+)\)`)

func TestLinksBetweenDocumentsLead(t *testing.T) {
	for _, path := range files(t, ".md") {
		for _, match := range link.FindAllSubmatch(read(t, path), -1) {
			target, _, _ := strings.Cut(string(match[1]), "#")
			if target == "" || strings.Contains(target, ":") {
				continue // within the page, or outside the repository
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), filepath.FromSlash(target))); err != nil {
				t.Errorf("%s links to %s, which is not there", path, match[1])
			}
		}
	}
}

var decision = regexp.MustCompile(`^\d{4}-[a-z0-9]+(-[a-z0-9]+)*\.md$`)

func TestDecisionsAreNumberedWithoutGaps(t *testing.T) {
	entries, err := os.ReadDir("docs/decisions")
	if err != nil {
		t.Fatal(err)
	}
	number := 0
	for _, entry := range entries {
		name := entry.Name()
		if name == "README.md" {
			continue
		}
		number++
		if want := fmt.Sprintf("%04d-", number); !decision.MatchString(name) || !strings.HasPrefix(name, want) {
			t.Errorf("docs/decisions/%s: want %stitle-of-it.md", name, want)
		}
		if title := fmt.Sprintf("# %d. ", number); !bytes.HasPrefix(read(t, "docs/decisions/"+name), []byte(title)) {
			t.Errorf("docs/decisions/%s does not begin with %q", name, title)
		}
	}
	if number == 0 {
		t.Error("no decisions")
	}
}
