package boot_test

import (
	"context"
	"testing"

	"go.uber.org/fx"

	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/boot"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// BenchmarkGet compares the in-process client with one over loopback.
func BenchmarkGet(b *testing.B) {
	var node *boot.Instance
	app := fx.New(boot.Node(boot.Config{
		Name: "embedded", DataDir: b.TempDir(), RuntimeDir: b.TempDir(), Listen: "127.0.0.1:0", Dev: true, Drivers: []string{boot.DriverNull},
	}), fx.Populate(&node), fx.NopLogger)
	if err := app.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := app.Stop(context.WithoutCancel(b.Context())); err != nil {
			b.Error(err)
		}
	}()
	loopback, err := client.New(client.Config{Address: node.Address()})
	if err != nil {
		b.Fatal(err)
	}
	defer loopback.Close()
	run, err := loopback.Submit(b.Context(), &errandv1.CreateRunRequest{Spec: &errandv1.RunSpec{Command: []string{"exit=0"}}})
	if err != nil {
		b.Fatal(err)
	}
	for name, c := range map[string]*client.Client{"in-process": node.Client(), "loopback": loopback} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Get(b.Context(), run.GetId()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
