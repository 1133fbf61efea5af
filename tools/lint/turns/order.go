package turns

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
)

const orderAdvice = "the order of a map is random: range over slices.Sorted(maps.Keys(m)), or say %s <why>"

// checkRange reports a range over a map whose order can show.
func (f *fileCheck) checkRange(loop *ast.RangeStmt) {
	pass := f.pass
	if _, isMap := pass.TypesInfo.TypeOf(loop.X).Underlying().(*types.Map); !isMap {
		return
	}
	if f.marks[pass.Fset.Position(loop.Pos()).Line] {
		return
	}
	body := &orderless{pass: pass, loop: loop}
	if body.holds() && sortedAfter(pass, loop, body.gathered, enclosing(f.functions, loop)) {
		return
	}
	pass.Reportf(loop.Pos(), orderAdvice, unorderedMark)
}

// checkIterators reports maps.Keys and its like unless they are sorted at once.
// Calls are met from the outside in, so an argument is known before it is met.
func (f *fileCheck) checkIterators(call *ast.CallExpr) {
	if pkg, name := callee(f.pass, call); pkg == "slices" && strings.HasPrefix(name, "Sorted") {
		for _, argument := range call.Args {
			if inner, ok := ast.Unparen(argument).(*ast.CallExpr); ok {
				f.sorted[inner] = true
			}
		}
	}
	if mapIterator(f.pass, call) && !f.sorted[call] && !f.marks[f.pass.Fset.Position(call.Pos()).Line] {
		f.pass.Reportf(call.Pos(), orderAdvice, unorderedMark)
	}
}

func mapIterator(pass *analysis.Pass, call *ast.CallExpr) bool {
	pkg, name := callee(pass, call)
	return pkg == "maps" && (name == "Keys" || name == "Values" || name == "All")
}

// callee names a function of a package that is called; a builtin has no package.
func callee(pass *analysis.Pass, call *ast.CallExpr) (pkg, name string) {
	function := ast.Unparen(call.Fun)
	if index, ok := function.(*ast.IndexExpr); ok {
		function = index.X
	}
	var identifier *ast.Ident
	switch f := function.(type) {
	case *ast.Ident:
		identifier = f
	case *ast.SelectorExpr:
		identifier = f.Sel
	default:
		return "", ""
	}
	object := pass.TypesInfo.Uses[identifier]
	if object == nil {
		return "", ""
	}
	if object.Pkg() != nil {
		pkg = object.Pkg().Path()
	}
	return pkg, object.Name()
}

// orderless tells whether statements have the same outcome in any order, but for
// the order of the slices that they gather.
type orderless struct {
	pass *analysis.Pass
	loop *ast.RangeStmt
	// gathered are the variables that the loop appends to.
	gathered []types.Object
	// effects tells whether rounds leave anything behind.
	effects bool
	// returned are the constants with which the loop may end early.
	returned []string
}

// holds tells whether the order of the rounds can not show: a loop that ends early
// leaves nothing behind and ends with the same answer whichever round ends it.
func (o *orderless) holds() bool {
	if !o.statements(o.loop.Body.List) {
		return false
	}
	return len(o.returned) == 0 || !o.effects && len(slices.Compact(o.returned)) == 1
}

func (o *orderless) statements(list []ast.Stmt) bool {
	for _, statement := range list {
		if !o.statement(statement) {
			return false
		}
	}
	return true
}

func (o *orderless) statement(statement ast.Stmt) bool {
	switch s := statement.(type) {
	case *ast.AssignStmt:
		return o.assignment(s)
	case *ast.IncDecStmt:
		o.effects = true
		return true
	case *ast.ReturnStmt:
		return o.constant(s.Results)
	case *ast.ExprStmt:
		o.effects = true
		call, ok := s.X.(*ast.CallExpr)
		return ok && o.isBuiltin(call, "delete") && o.pureAll(call.Args)
	case *ast.IfStmt:
		return (s.Init == nil || o.statement(s.Init)) && o.pure(s.Cond) && o.statements(s.Body.List) && (s.Else == nil || o.statement(s.Else))
	case *ast.BlockStmt:
		return o.statements(s.List)
	case *ast.BranchStmt:
		return s.Tok == token.CONTINUE
	default:
		return false
	}
}

// constant notes a return of constants.
func (o *orderless) constant(results []ast.Expr) bool {
	text := ""
	for _, result := range results {
		value := o.pass.TypesInfo.Types[result]
		if value.Value == nil && !value.IsNil() {
			return false
		}
		text += types.ExprString(result) + ","
	}
	o.returned = append(o.returned, text)
	return true
}

// assignment allows filling maps, appending, adding up integers, and variables of
// the loop's own.
func (o *orderless) assignment(s *ast.AssignStmt) bool {
	if s.Tok == token.DEFINE {
		return o.pureAll(s.Rhs)
	}
	o.effects = true
	if len(s.Lhs) != 1 || len(s.Rhs) != 1 {
		return false
	}
	if call, ok := s.Rhs[0].(*ast.CallExpr); ok && s.Tok == token.ASSIGN && o.isBuiltin(call, "append") {
		target := o.variable(s.Lhs[0])
		if target == nil || len(call.Args) == 0 || o.variable(call.Args[0]) != target || !o.pureAll(call.Args[1:]) {
			return false
		}
		o.gathered = append(o.gathered, target)
		return true
	}
	if !o.pure(s.Rhs[0]) {
		return false
	}
	switch s.Tok {
	case token.ASSIGN:
		return o.fillsMap(s.Lhs[0])
	case token.ADD_ASSIGN, token.OR_ASSIGN:
		basic, ok := o.pass.TypesInfo.TypeOf(s.Lhs[0]).Underlying().(*types.Basic)
		return ok && basic.Info()&types.IsInteger != 0
	default:
		return false
	}
}

// fillsMap tells whether the target is a map at the key of this round, so that no
// two rounds write one place.
func (o *orderless) fillsMap(target ast.Expr) bool {
	index, ok := target.(*ast.IndexExpr)
	if !ok {
		return false
	}
	_, isMap := o.pass.TypesInfo.TypeOf(index.X).Underlying().(*types.Map)
	key, named := o.loop.Key.(*ast.Ident)
	return isMap && named && o.variable(index.Index) != nil && o.variable(index.Index) == o.pass.TypesInfo.ObjectOf(key)
}

func (o *orderless) variable(e ast.Expr) types.Object {
	switch v := ast.Unparen(e).(type) {
	case *ast.Ident:
		return o.pass.TypesInfo.ObjectOf(v)
	case *ast.SelectorExpr:
		return o.pass.TypesInfo.ObjectOf(v.Sel)
	default:
		return nil
	}
}

func (o *orderless) isBuiltin(call *ast.CallExpr, name string) bool {
	identifier, ok := call.Fun.(*ast.Ident)
	if !ok || identifier.Name != name {
		return false
	}
	_, builtin := o.pass.TypesInfo.Uses[identifier].(*types.Builtin)
	return builtin
}

func (o *orderless) pureAll(list []ast.Expr) bool {
	for _, e := range list {
		if !o.pure(e) {
			return false
		}
	}
	return true
}

// pure tells whether an expression calls nothing but conversions, len and cap.
func (o *orderless) pure(e ast.Expr) bool {
	pure := true
	ast.Inspect(e, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.CallExpr:
			conversion := o.pass.TypesInfo.Types[n.Fun].IsType()
			if !conversion && !o.isBuiltin(n, "len") && !o.isBuiltin(n, "cap") {
				pure = false
			}
		case *ast.FuncLit:
			pure = false
		}
		return pure
	})
	return pure
}

// sortedAfter tells whether all gathered slices are sorted behind the loop.
func sortedAfter(pass *analysis.Pass, loop *ast.RangeStmt, gathered []types.Object, function ast.Node) bool {
	for _, variable := range gathered {
		found := false
		ast.Inspect(function, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok || call.Pos() < loop.End() || len(call.Args) == 0 {
				return true
			}
			pkg, name := callee(pass, call)
			sorts := pkg == "sort" || pkg == "slices" && strings.HasPrefix(name, "Sort")
			if sorts && (&orderless{pass: pass}).variable(call.Args[0]) == variable {
				found = true
			}
			return true
		})
		if !found {
			return false
		}
	}
	return true
}

// enclosing returns the innermost of the functions that holds a node. Functions are
// in the order in which they begin.
func enclosing(functions []ast.Node, node ast.Node) ast.Node {
	for i := len(functions) - 1; i >= 0; i-- {
		if functions[i].Pos() <= node.Pos() && node.End() <= functions[i].End() {
			return functions[i]
		}
	}
	return node
}
