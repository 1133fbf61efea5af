package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
)

// simulatedSpeed finds the real-time factor of five nodes in what simulate --bench prints.
var simulatedSpeed = regexp.MustCompile(`(?m)^ *5 nodes: +([0-9]+)x real time`)

// simulated measures how much faster than time a simulated cluster of five nodes lives,
// on one core.
func simulated(ctx context.Context, s sizes) ([]row, error) {
	r := row{What: "simulated cluster of five nodes", Unit: "x real time", Bar: atLeast(10_000), Note: "by the time used of one core"}
	for range min(s.rounds, simulatedRounds) {
		var output bytes.Buffer
		command := exec.CommandContext(ctx, "bin/simulate", "--bench")
		command.Stdout, command.Stderr = &output, &output
		if err := command.Run(); err != nil {
			return nil, fmt.Errorf("simulate --bench: %w: %s", err, output.String())
		}
		found := simulatedSpeed.FindSubmatch(output.Bytes())
		if found == nil {
			return nil, fmt.Errorf("simulate --bench printed no speed of five nodes: %s", output.String())
		}
		speed, err := strconv.ParseFloat(string(found[1]), 64)
		if err != nil {
			return nil, err
		}
		r.Values = append(r.Values, speed)
	}
	return []row{r}, nil
}

// simulatedRounds is at most how often it is measured: each takes half a minute of a core.
const simulatedRounds = 2
