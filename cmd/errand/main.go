// Command errand is the command line of Errand: it runs a command in a sandbox
// on a node and exits with that command's own code.
package main

import (
	"context"
	"os"

	"github.com/errand-run/errand/cmd/errand/internal/cli"
)

// version is set by the build (-ldflags "-X main.version=v1.2.3").
var version string

func main() {
	cli.Version = version
	os.Exit(cli.Execute(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ()))
}
