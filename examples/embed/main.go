// Command embed is a service with a node of Errand inside its own fx application: it
// runs a command through the in-process client and takes the output by a log sink of
// its own. No port is opened.
//
//	go run ./examples/embed DIRECTORY
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"go.uber.org/fx"

	"github.com/errand-run/errand/boot"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: embed DIRECTORY")
		os.Exit(2)
	}
	if err := serve(context.Background(), os.Args[1], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "embed:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, dir string, out io.Writer) (err error) {
	var node *boot.Instance
	type piece struct {
		run string
		*errandv1.LogsResponse
	}
	written := make(chan piece)
	sink := func(ctx context.Context, run string, message *errandv1.LogsResponse) error {
		select {
		case written <- piece{run, message}:
			return nil
		case <-ctx.Done(): // the node stops
			return ctx.Err()
		}
	}
	app := fx.New(
		boot.Node(boot.Config{
			Name: "embedded", DataDir: dir, Listen: boot.ListenNone,
			Drivers: []string{boot.DriverProcess}, SandboxInit: os.Getenv("SANDBOX_INIT"),
		}),
		fx.Replace(boot.Parts{LogSink: sink}),
		fx.Populate(&node), fx.NopLogger,
	)
	if err := app.Start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, app.Stop(context.WithoutCancel(ctx))) }()
	run, err := node.Client().Submit(ctx, &errandv1.CreateRunRequest{
		Spec: &errandv1.RunSpec{Command: []string{"/bin/sh", "-c", "echo hello; echo careful >&2; exit 7"}},
	})
	if err != nil {
		return err
	}
	for ended := false; !ended; {
		piece := <-written
		if piece.run != run.GetId() {
			continue // of a run that an earlier process has left
		}
		for _, chunk := range piece.GetChunks() {
			fmt.Fprintf(out, "%s: %s", chunk.GetStream(), chunk.GetData())
		}
		ended = piece.GetEnd() != nil
	}
	if run, err = node.Client().Wait(ctx, run.GetId()); err == nil {
		fmt.Fprintf(out, "%s with code %d\n", run.GetStatus(), run.GetExitCode())
	}
	return err
}
