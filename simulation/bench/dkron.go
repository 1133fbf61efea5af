package main

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
)

// dkronPeer drives Dkron: one server, as its documentation of 4.x has it. A command is a
// job of the shell executor that is run by the API. The jobs are made before the time is
// measured, which is in favour of Dkron: ours makes its record of a run within it.
func dkronPeer(program, version string) peer {
	return peer{
		name: "Dkron " + version, setting: "one server, shell executor, a job each that was made before",
		start: func(ctx context.Context, at *place) (session, error) {
			ports, err := at.ports(3)
			if err != nil {
				return nil, err
			}
			// Without one of ours it would read that of the machine.
			config := filepath.Join(at.folder, "dkron.yml")
			if err := os.WriteFile(config, []byte("log-level: warn\n"), 0o600); err != nil {
				return nil, err
			}
			if err := at.run(program, dkronArgs(at.folder, config, ports[0], ports[1], ports[2])...); err != nil {
				return nil, err
			}
			s := &dkronSession{rest: newRest(ports[0]), ledger: at.ledger}
			if err := at.up(ctx, upMax, s.ready); err != nil {
				s.close()
				return nil, err
			}
			return s, nil
		},
	}
}

func dkronArgs(folder, config string, httpPort, serfPort, rpcPort int) []string {
	loopback := func(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
	return []string{
		"agent", "--config", config, "--server", "--bootstrap-expect=1", "--node-name=errand-bench", "--disable-usage-stats",
		"--data-dir=" + filepath.Join(folder, "data"), "--http-addr=" + loopback(httpPort),
		"--bind-addr=" + loopback(serfPort), "--rpc-port=" + strconv.Itoa(rpcPort), "--log-level=warn",
	}
}

// dkronJob is the job of one number. Nothing but a call of the API runs it.
func dkronJob(l *ledger, number int) any {
	return map[string]any{
		"name": dkronName(number), "schedule": "@manually", "concurrency": "allow", "retries": 0,
		"executor":        "shell",
		"executor_config": map[string]string{"shell": "true", "command": l.line(strconv.Itoa(number))},
	}
}

func dkronName(number int) string { return "command-" + strconv.Itoa(number) }

type dkronSession struct {
	*rest
	ledger *ledger
}

// ready is nil when the server has elected itself.
func (s *dkronSession) ready(ctx context.Context) error {
	var leader struct{ Name string }
	if err := s.call(ctx, http.MethodGet, "/v1/leader", nil, &leader, http.StatusOK); err != nil {
		return err
	}
	if leader.Name == "" {
		return errors.New("there is no leader")
	}
	return nil
}

// prepare makes the jobs.
func (s *dkronSession) prepare(ctx context.Context, first, count int) error {
	var next atomic.Int64
	_, err := driveWhile(ctx, peerSubmitters, counted(count), func(ctx context.Context, _ int) error {
		return s.call(ctx, http.MethodPost, "/v1/jobs", dkronJob(s.ledger, first+int(next.Add(1))-1), nil, http.StatusCreated)
	})
	return err
}

// submit has a job run. It is answered by 202; versions before have said 200.
func (s *dkronSession) submit(ctx context.Context, number int) error {
	return s.call(ctx, http.MethodPost, "/v1/jobs/"+dkronName(number), nil, nil, http.StatusAccepted, http.StatusOK)
}
