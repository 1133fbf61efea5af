package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"path/filepath"
	"strconv"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/messages/errand/v1/errandv1connect"
	"github.com/errand-run/errand/simulation/daemon"
)

// oursPeer drives our own node like any peer: started in a place, handed commands, and
// counted by the ledger.
func oursPeer(binary string) peer {
	return peer{
		name: "errand", setting: "one node, process driver, a run each",
		start: func(ctx context.Context, at *place) (session, error) {
			program, err := filepath.Abs(binary)
			if err != nil {
				return nil, err
			}
			ports, err := at.ports(1)
			if err != nil {
				return nil, err
			}
			listen := "127.0.0.1:" + strconv.Itoa(ports[0])
			if err := at.run(program, "--data", filepath.Join(at.folder, "data"), "--listen", listen,
				"--dev", "--log-level", "error", "--drivers", "process"); err != nil {
				return nil, err
			}
			api := newRest(ports[0])
			s := &oursSession{rest: api, ledger: at.ledger, runs: errandv1connect.NewRunServiceClient(api.client, api.address)}
			if err := at.up(ctx, upMax, func(ctx context.Context) error { return daemon.Probe(ctx, api.address+"/readyz") }); err != nil {
				s.close()
				return nil, err
			}
			return s, nil
		},
	}
}

type oursSession struct {
	*rest
	ledger *ledger
	runs   errandv1connect.RunServiceClient
}

func (s *oursSession) prepare(context.Context, int, int) error { return nil }

// submit returns when the run is recorded.
func (s *oursSession) submit(ctx context.Context, number int) error {
	_, err := s.runs.Create(ctx, &errandv1.CreateRunRequest{
		Spec:           &errandv1.RunSpec{Driver: "process", Command: s.ledger.command(number)},
		IdempotencyKey: rand.Text(),
	})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	return nil
}
