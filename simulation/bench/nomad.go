package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
)

// nomadJobID is the one job that every command is an instance of.
const nomadJobID = "errand-bench"

// nomadPeer drives Nomad: one agent that is server and client, as its documentation
// of 1.x has it. It is no -dev agent, which keeps its state in memory only, while ours is
// durable. Each command is a dispatch of one parameterized job with the driver raw_exec.
// What is not said here is left at its default.
func nomadPeer(program, version string) peer {
	return peer{
		name: "Nomad " + version, setting: "one agent, raw_exec, a dispatch of a parameterized batch job each",
		start: func(ctx context.Context, at *place) (session, error) {
			ports, err := at.ports(3)
			if err != nil {
				return nil, err
			}
			config := filepath.Join(at.folder, "nomad.hcl")
			if err := os.WriteFile(config, []byte(nomadConfig(at.folder, ports[0], ports[1], ports[2])), 0o600); err != nil {
				return nil, err
			}
			if err := at.run(program, "agent", "-config="+config); err != nil {
				return nil, err
			}
			s := &nomadSession{rest: newRest(ports[0])}
			err = at.up(ctx, upMax, s.ready)
			if err == nil {
				err = s.register(ctx, at.ledger)
			}
			if err != nil {
				s.close()
				return nil, err
			}
			return s, nil
		},
	}
}

// nomadConfig is an agent's configuration.
func nomadConfig(folder string, httpPort, rpcPort, serfPort int) string {
	return fmt.Sprintf(`data_dir = %q
bind_addr = "127.0.0.1"
log_level = "WARN"
disable_update_check = true
disable_anonymous_signature = true
ports {
  http = %d
  rpc = %d
  serf = %d
}
advertise {
  http = "127.0.0.1"
  rpc = "127.0.0.1"
  serf = "127.0.0.1"
}
server {
  enabled = true
  bootstrap_expect = 1
}
client {
  enabled = true
  network_interface = "lo"
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
consul {
  auto_advertise = false
  server_auto_join = false
  client_auto_join = false
}
telemetry {
  publish_allocation_metrics = false
  publish_node_metrics = false
}
`, filepath.Join(folder, "data"), httpPort, rpcPort, serfPort)
}

// nomadJob is what each command is an instance of. It asks for next to nothing and is
// never tried again: a command that runs twice is an error.
func nomadJob(l *ledger) any {
	type object = map[string]any
	return object{"Job": object{
		"ID": nomadJobID, "Name": nomadJobID, "Type": "batch", "Datacenters": []string{"dc1"},
		"ParameterizedJob": object{"Payload": "forbidden", "MetaRequired": []string{"number"}},
		"TaskGroups": []object{{
			"Name": "command", "Count": 1,
			"RestartPolicy":    object{"Attempts": 0, "Mode": "fail"},
			"ReschedulePolicy": object{"Attempts": 0, "Unlimited": false},
			"EphemeralDisk":    object{"SizeMB": 20},
			"Tasks": []object{{
				"Name": "command", "Driver": "raw_exec",
				"Config":    object{"command": "/bin/sh", "args": []string{"-c", l.line("${NOMAD_META_number}")}},
				"Resources": object{"CPU": 10, "MemoryMB": 10},
				"LogConfig": object{"MaxFiles": 1, "MaxFileSizeMB": 1},
			}},
		}},
	}}
}

type nomadSession struct{ *rest }

// ready is nil when the agent has a node that may run commands.
func (s *nomadSession) ready(ctx context.Context) error {
	var nodes []struct {
		Status  string
		Drivers map[string]struct{ Detected, Healthy bool }
	}
	if err := s.call(ctx, http.MethodGet, "/v1/nodes", nil, &nodes, http.StatusOK); err != nil {
		return err
	}
	for _, node := range nodes {
		if driver := node.Drivers["raw_exec"]; node.Status == "ready" && driver.Detected && driver.Healthy {
			return nil
		}
	}
	return fmt.Errorf("none of %d nodes is ready and has raw_exec", len(nodes))
}

func (s *nomadSession) register(ctx context.Context, l *ledger) error {
	return s.call(ctx, http.MethodPost, "/v1/jobs", nomadJob(l), nil, http.StatusOK)
}

func (s *nomadSession) prepare(context.Context, int, int) error { return nil }

func (s *nomadSession) submit(ctx context.Context, number int) error {
	body := map[string]any{"Meta": map[string]string{"number": strconv.Itoa(number)}}
	var dispatched struct{ DispatchedJobID string }
	if err := s.call(ctx, http.MethodPost, "/v1/job/"+nomadJobID+"/dispatch", body, &dispatched, http.StatusOK); err != nil {
		return err
	}
	if dispatched.DispatchedJobID == "" {
		return errors.New("nothing was dispatched")
	}
	return nil
}
