// Package turns checks what a machine's turn may do: no goroutine, no channel, no
// lock, no clock but the time it is given, no random but its port, and nothing
// whose order comes from a map.
//
// All files under actors/ are checked, and the files of the package nodes that
// hold a machine: those with a method of a type that has Step, and those that say
// //errand:machine. A range over a map is allowed when its body only fills maps, counts,
// looks for what gives one constant answer, or gathers a slice that is sorted after
// it in the same function. What can not be seen to be in order is marked, with the
// reason: //errand:unordered <why>.
package turns

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"

	"golang.org/x/tools/go/analysis"

	"github.com/errand-run/errand/tools/lint/imports"
)

// Analyzer reports what a turn may not do.
var Analyzer = &analysis.Analyzer{
	Name: "errandturns",
	Doc:  "check that the turns of Errand's machines are pure and in order",
	Run:  run,
}

const (
	machineMark   = "//errand:machine"
	unorderedMark = "//errand:unordered"
)

// banned maps packages to what is used instead; an empty set of names bans all.
var banned = map[string]struct {
	names   []string
	instead string
}{
	"time": {
		[]string{"Now", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker", "Since", "Until"},
		"take now from Step and ask for a SetTimer",
	},
	"sync":         {nil, "a turn has its state to itself"},
	"sync/atomic":  {nil, "a turn has its state to itself"},
	"math/rand":    {nil, "draw from the Rand port"},
	"math/rand/v2": {nil, "draw from the Rand port"},
	"crypto/rand":  {nil, "draw from the Rand port"},
}

func run(pass *analysis.Pass) (any, error) {
	path := pass.Pkg.Path()
	inActors := path == imports.Module+"/actors" || strings.HasPrefix(path, imports.Module+"/actors/")
	if !inActors && path != imports.Module+"/nodes" {
		return nil, nil
	}
	for _, file := range pass.Files {
		if strings.HasSuffix(pass.Fset.Position(file.FileStart).Filename, "_test.go") {
			continue
		}
		if inActors || holdsMachine(pass, file) {
			checkFile(pass, file)
		}
	}
	return nil, nil
}

// holdsMachine tells whether a file is marked or has a method of a machine.
func holdsMachine(pass *analysis.Pass, file *ast.File) bool {
	for _, group := range file.Comments {
		for _, comment := range group.List {
			if strings.HasPrefix(comment.Text, machineMark) {
				return true
			}
		}
	}
	for _, declaration := range file.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if ok && function.Recv != nil && isMachine(pass, function) {
			return true
		}
	}
	return false
}

// isMachine tells whether a method's receiver has Step.
func isMachine(pass *analysis.Pass, function *ast.FuncDecl) bool {
	method, ok := pass.TypesInfo.Defs[function.Name].(*types.Func)
	if !ok {
		return false
	}
	receiver := method.Signature().Recv().Type()
	step, _, _ := types.LookupFieldOrMethod(receiver, true, pass.Pkg, "Step")
	found, ok := step.(*types.Func)
	return ok && found.Signature().Params().Len() == 2 && found.Signature().Results().Len() == 1
}

// fileCheck is the check of one file.
type fileCheck struct {
	pass *analysis.Pass
	// marks are the lines at which order is said not to matter.
	marks map[int]bool
	// functions are those met so far, in the order in which they begin.
	functions []ast.Node
	// sorted are the calls whose result is sorted at once.
	sorted map[*ast.CallExpr]bool
}

func checkFile(pass *analysis.Pass, file *ast.File) {
	f := &fileCheck{pass: pass, marks: unorderedMarks(pass, file), sorted: map[*ast.CallExpr]bool{}}
	ast.Inspect(file, func(node ast.Node) bool {
		f.check(node)
		return true
	})
}

func (f *fileCheck) check(node ast.Node) {
	switch n := node.(type) {
	case *ast.FuncDecl, *ast.FuncLit:
		f.functions = append(f.functions, n)
	case *ast.GoStmt:
		f.pass.Reportf(n.Pos(), "no goroutine in a turn: return an effect")
	case *ast.SelectStmt, *ast.SendStmt:
		f.pass.Reportf(n.Pos(), "no channel in a turn: return an effect, take its result as an input")
	case *ast.UnaryExpr:
		if n.Op == token.ARROW {
			f.pass.Reportf(n.Pos(), "no channel in a turn: return an effect, take its result as an input")
		}
	case *ast.SelectorExpr:
		checkUse(f.pass, n)
	case *ast.CallExpr:
		f.checkIterators(n)
	case *ast.RangeStmt:
		f.checkRange(n)
	}
}

// checkUse reports the use of a name that is banned.
func checkUse(pass *analysis.Pass, selector *ast.SelectorExpr) {
	object := pass.TypesInfo.Uses[selector.Sel]
	if object == nil || object.Pkg() == nil || object.Parent() != object.Pkg().Scope() {
		return // a method or a field
	}
	ban, found := banned[object.Pkg().Path()]
	if !found {
		return
	}
	if ban.names == nil || contains(ban.names, object.Name()) {
		pass.Reportf(selector.Pos(), "no %s.%s in a turn: %s", object.Pkg().Name(), object.Name(), ban.instead)
	}
}

func contains(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}

// unorderedMarks returns the lines that say why order does not matter; a mark holds
// for its own line and the next.
func unorderedMarks(pass *analysis.Pass, file *ast.File) map[int]bool {
	lines := map[int]bool{}
	for _, group := range file.Comments {
		for _, comment := range group.List {
			reason, found := strings.CutPrefix(comment.Text, unorderedMark)
			if !found {
				continue
			}
			reason, _, _ = strings.Cut(reason, "//")
			if strings.TrimSpace(reason) == "" {
				pass.Reportf(comment.Pos(), "say why the order does not matter: %s <why>", unorderedMark)
				continue
			}
			line := pass.Fset.Position(comment.Pos()).Line
			lines[line], lines[line+1] = true, true
		}
	}
	return lines
}
