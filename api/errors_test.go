package api

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/cluster/records"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// codeOf reads the stable code out of an error.
func codeOf(err error) Code {
	var made *connect.Error
	if !errors.As(err, &made) {
		return ""
	}
	for _, detail := range made.Details() {
		if value, err := detail.Value(); err == nil {
			if info, ok := value.(*errandv1.ErrorInfo); ok {
				return Code(info.GetCode())
			}
		}
	}
	return ""
}

func TestEveryCodeIsInTheTableOnce(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]bool{}
	ast.Inspect(file, func(node ast.Node) bool {
		if spec, ok := node.(*ast.ValueSpec); ok {
			if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Code" {
				word, _ := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
				declared[word] = true
			}
		}
		return true
	})
	for _, line := range Codes() {
		if !declared[string(line.Code)] {
			t.Errorf("%s: twice in the table, or not declared", line.Code)
		}
		delete(declared, string(line.Code))
		if line.Connect == 0 || !strings.HasSuffix(line.Meaning, ".") {
			t.Errorf("%s: no Connect code or no sentence", line.Code)
		}
	}
	if len(declared) > 0 {
		t.Errorf("not in the table: %v", declared)
	}
}

func TestStoreErrorsKeepTheirClass(t *testing.T) {
	cases := map[records.Class]Code{
		records.ClassConflict:       CodeStoreConflict,
		records.ClassUnavailable:    CodeStoreUnavailable,
		records.ClassLostOwnership:  CodeStoreUnavailable,
		records.ClassDeadline:       CodeDeadline,
		records.ClassOutcomeUnknown: CodeOutcomeUnknown,
		records.ClassInternal:       CodeInternal,
	}
	for class, want := range cases {
		err := storeError(context.Background(), "do it", records.Errorf(class, "etcd said no"))
		if got := codeOf(err); got != want || !strings.Contains(err.Error(), "do it: etcd said no") {
			t.Errorf("%s: %s (%v), want %s", class, got, err, want)
		}
	}
}

func TestAnEndedContextSaysWhy(t *testing.T) {
	stopped, stop := context.WithCancelCause(context.Background())
	stop(errStopping)
	late, cancel := context.WithTimeout(context.Background(), 0)
	defer cancel()
	<-late.Done()
	left, leave := context.WithCancel(context.Background())
	leave()
	if got := codeOf(contextError(stopped)); got != CodeNodeStopping {
		t.Errorf("stopping: %s", got)
	}
	if got := codeOf(contextError(late)); got != CodeDeadline {
		t.Errorf("late: %s", got)
	}
	if got := connect.CodeOf(contextError(left)); got != connect.CodeCanceled {
		t.Errorf("left: %s", got)
	}
	if err := contextError(context.Background()); err != nil {
		t.Errorf("under way: %v", err)
	}
}
