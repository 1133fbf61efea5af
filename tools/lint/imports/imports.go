// Package imports checks who may import whom: the layers of the design point down
// only, each outside library has one home, and what is pure stays so. Tests may
// import what they need.
package imports

import (
	"strconv"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// Module is the path of the module whose rules these are.
const Module = "github.com/errand-run/errand"

// Analyzer reports imports against the rules.
var Analyzer = &analysis.Analyzer{
	Name: "errandimports",
	Doc:  "check the import rules between Errand's layers and the home of each library",
	Run:  run,
}

// layers are the top folders from the bottom up. A package imports its own layer
// and those below.
var layers = []string{"messages", "cluster", "actors", "nodes", "api", "boot", "cmd", "simulation"}

// home is where alone a library may be imported.
type home struct {
	library string
	folders []string
	instead string
}

var homes = []home{
	{"github.com/asynkron/protoactor-go", []string{"cluster/host", "cluster/activation", "actors/shell", "simulation"}, "write a Machine and run it by actors/shell"},
	{"go.etcd.io/etcd", []string{"cluster/store"}, "use the Store port, or records.Reader"},
	{"github.com/hashicorp/memberlist", []string{"cluster/membership"}, "use the Nodes port"},
	{"github.com/containerd", []string{"nodes/sandbox/containerd"}, "use sandbox.Driver"},
	{"go.etcd.io/bbolt", []string{"nodes/journal", "cluster/store"}, "use the Journal port"},
	{"go.uber.org/fx", []string{"boot", "cmd", "examples"}, "write a constructor and wire it in boot"},
}

// peers use a library plainly, to compare us with its plain use.
var peers = []string{"simulation/bench"}

// adapters may be imported by who assembles a process, and not by each other.
var adapters = []string{
	"nodes/clock", "nodes/journal", "nodes/pool",
	"nodes/sandbox/containerd", "nodes/sandbox/null", "nodes/sandbox/process",
}

// assemblers put adapters together.
var assemblers = []string{"boot", "nodes/inventory", "cmd", "simulation/chaos", "simulation/bench", "simulation/daemon"}

// pure folders reach the outside only by ports.
var pure = []string{"actors", "cluster/flight", "cluster/records"}

// outside are the packages that reach the outside by themselves.
var outside = []string{
	"net", "os", "io/fs", "io/ioutil", "path/filepath", "syscall", "log", "database", "embed", "plugin",
	"golang.org/x/sys", "google.golang.org/grpc", "connectrpc.com",
}

func run(pass *analysis.Pass) (any, error) {
	folder, ours := folderOf(pass.Pkg.Path())
	if !ours || strings.HasSuffix(folder, ".test") { // the main package that go test writes
		return nil, nil
	}
	for _, file := range pass.Files {
		if strings.HasSuffix(pass.Fset.Position(file.FileStart).Filename, "_test.go") {
			continue
		}
		for _, spec := range file.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				continue // the compiler reports it
			}
			if complaint := check(folder, path); complaint != "" {
				pass.Reportf(spec.Pos(), "%s", complaint)
			}
		}
	}
	return nil, nil
}

// check returns what is wrong with an import, or nothing.
func check(folder, path string) string {
	if target, ours := folderOf(path); ours {
		return checkOwn(folder, target)
	}
	for _, h := range homes {
		if within(path, h.library) && !withinAny(folder, h.folders) && !withinAny(folder, peers) {
			return h.library + " may be imported only in " + strings.Join(h.folders, ", ") + ": " + h.instead
		}
	}
	if withinAny(folder, pure) && withinAny(path, outside) {
		return folder + " is pure and may not import " + path + ": reach the outside by a port, in an effect"
	}
	return ""
}

// checkOwn checks an import of one of our packages by another.
func checkOwn(folder, target string) string {
	from, to := layerOf(folder), layerOf(target)
	if from >= 0 && to > from {
		return "imports point down only, and " + layers[to] + " lies above " + layers[from] + ": declare a small interface here"
	}
	for _, adapter := range adapters {
		if within(target, adapter) && !within(folder, adapter) && !withinAny(folder, assemblers) {
			return adapter + " is an adapter that only boot wires: declare a port here"
		}
	}
	return ""
}

// folderOf returns the folder of one of our packages.
func folderOf(path string) (folder string, ours bool) {
	if path == Module {
		return "", true
	}
	return strings.CutPrefix(path, Module+"/")
}

// layerOf returns the height of a folder's layer, -1 outside the layers. The
// simulation's own command is a part of it.
func layerOf(folder string) int {
	top, _, _ := strings.Cut(folder, "/")
	if within(folder, "cmd/simulate") {
		top = "simulation"
	}
	for i, layer := range layers {
		if layer == top {
			return i
		}
	}
	return -1
}

func within(path, root string) bool { return path == root || strings.HasPrefix(path, root+"/") }

func withinAny(path string, roots []string) bool {
	for _, root := range roots {
		if within(path, root) {
			return true
		}
	}
	return false
}
