package main

import (
	"context"
	"errors"
	"fmt"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// specs are what pairs of batches may be of.
var specs = map[string]*errandv1.RunSpec{"process": truth, "null": nothing}

// pairSubmitters is how many submit at a time while pairs are measured.
var pairSubmitters = map[*errandv1.RunSpec]int{truth: 8, nothing: 64}

// runPairs has both daemons up at once and gives them small batches of runs in turn.
// What else the machine does changes slower than that, so the differences within the
// pairs show what the rounds of a comparison can not.
func (c comparison) runPairs(ctx context.Context, spec *errandv1.RunSpec) (err error) {
	var sides [2]*benchDaemon
	for i, binary := range []string{c.base, c.node} {
		if sides[i], err = startBinary(ctx, binary, "--drivers", "process,null"); err != nil {
			break
		}
		defer func() { err = errors.Join(err, sides[i].stop()) }()
	}
	if err != nil {
		return err
	}
	var spent [2][]float64
	var differences []float64
	for pair := range c.pairs + 1 {
		var cpu [2]float64
		for turn := range 2 {
			// Who comes second finds the caches and the disk as the first has left them.
			side := (turn + pair) % 2
			if _, cpu[side], err = c.through(ctx, sides[side], pairSubmitters[spec], spec); err != nil {
				return err
			}
		}
		if pair == 0 {
			continue // both warm up
		}
		spent[0], spent[1] = append(spent[0], cpu[0]), append(spent[1], cpu[1])
		differences = append(differences, cpu[1]-cpu[0])
	}
	fmt.Printf("CPU ms per run, median of %d batches of %d: base %.2f, new %.2f; new - base, quartiles: %.2f, %.2f, %.2f\n",
		c.pairs, c.runs, quantile(spent[0], 50), quantile(spent[1], 50),
		quantile(differences, 25), quantile(differences, 50), quantile(differences, 75))
	return nil
}
