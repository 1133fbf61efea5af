// Command generate compiles the protobuf files below messages/ and writes the
// Go code of protoc-gen-go and protoc-gen-connect-go beside them.
//
// It stands in for protoc, which would have to be installed: the compiler is
// the protocompile library and both plugins are tools of this module, so that
// go.sum pins everything that shapes the generated code.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: generate FOLDER-OF-PROTO-FILES")
		os.Exit(2)
	}
	if err := generate(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func generate(ctx context.Context, root string) error {
	files, err := protoFiles(root)
	if err != nil {
		return err
	}
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{root}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := compiler.Compile(ctx, files...)
	if err != nil {
		return fmt.Errorf("compile %s: %w", root, err)
	}
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: files}
	seen := map[string]bool{}
	for _, file := range compiled {
		addWithImports(request, file, seen)
	}
	for _, plugin := range []string{"protoc-gen-go", "protoc-gen-connect-go"} {
		if err := runPlugin(ctx, plugin, request, root); err != nil {
			return fmt.Errorf("%s: %w", plugin, err)
		}
	}
	return nil
}

func protoFiles(root string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".proto") {
			return err
		}
		name, err := filepath.Rel(root, path)
		files = append(files, filepath.ToSlash(name))
		return err
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("no .proto file below %s", root)
	}
	slices.Sort(files)
	return files, err
}

// addWithImports appends the file after everything it imports, the order that
// plugins rely on.
func addWithImports(request *pluginpb.CodeGeneratorRequest, file protoreflect.FileDescriptor, seen map[string]bool) {
	if seen[file.Path()] {
		return
	}
	seen[file.Path()] = true
	imports := file.Imports()
	for i := range imports.Len() {
		addWithImports(request, imports.Get(i).FileDescriptor, seen)
	}
	var descriptor *descriptorpb.FileDescriptorProto = protoutil.ProtoFromFileDescriptor(file)
	request.ProtoFile = append(request.ProtoFile, descriptor)
}

func runPlugin(ctx context.Context, name string, request *pluginpb.CodeGeneratorRequest, root string) error {
	request.Parameter = proto.String("paths=source_relative")
	if name == "protoc-gen-connect-go" {
		request.Parameter = proto.String("paths=source_relative,simple")
	}
	input, err := proto.Marshal(request)
	if err != nil {
		return fmt.Errorf("encode the request: %w", err)
	}
	command := exec.CommandContext(ctx, "go", "tool", name)
	command.Stdin, command.Stderr = bytes.NewReader(input), os.Stderr
	output, err := command.Output()
	if err != nil {
		return err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(output, &response); err != nil {
		return fmt.Errorf("decode the answer: %w", err)
	}
	if response.Error != nil {
		return errors.New(response.GetError())
	}
	for _, file := range response.File {
		target := filepath.Join(root, filepath.FromSlash(file.GetName()))
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(target, []byte(file.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
