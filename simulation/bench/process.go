package main

import (
	"context"
	"errors"
	"fmt"
)

// dkronRate is what the shell executor of Dkron 4 did on the machine that the bars are
// from, without isolation.
const dkronRate = 218

// processDriver measures how many `true` the process driver runs.
func processDriver(ctx context.Context, s sizes) (rows []row, err error) {
	d, err := startDaemon(ctx, "--drivers", "process")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	for _, submitters := range []int{8, 32} {
		r := row{What: fmt.Sprintf("`true`, process driver, %d submitters", submitters), Unit: "/s", Bar: atLeast(dkronRate)}
		var cost costs
		for range s.rounds {
			done, err := cost.measured(d, func() (rate, error) { return drive(ctx, submitters, s.slice, runOf(d, truth)) })
			if err != nil {
				return rows, err
			}
			r.Values = append(r.Values, done.perSecond())
		}
		r.Note = cost.note()
		rows = append(rows, r)
	}
	return rows, nil
}
