package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// peerSubmitters hand commands over at the same time, to each peer alike.
const peerSubmitters = 8

// known are the programs that do the same job, by the names they have on the path.
var known = []struct {
	program string
	peer    func(program, version string) peer
	// bar is for never more commands under way than there are submitters.
	bar *bar
}{
	{"dkron", dkronPeer, atLeast(1)},
	{"nomad", nomadPeer, nil},
}

// peersInTurn measures ours beside each peer that is installed.
func peersInTurn(ctx context.Context, s sizes) ([]row, error) {
	return peersFound(ctx, os.Stderr, exec.LookPath, rivalry{ours: oursPeer("bin/errand-node"), rounds: s.rounds, commands: s.commands, patience: patient})
}

// peersFound says of each peer that is not there why the table has no row of it, so that
// nobody takes a row's absence for a comparison that was made.
func peersFound(ctx context.Context, w io.Writer, find func(program string) (path string, err error), r rivalry) (rows []row, err error) {
	for _, k := range known {
		path, err := find(k.program)
		if err != nil {
			fmt.Fprintf(w, "bench: %s: not installed: no row\n", k.program)
			continue
		}
		r.theirs, r.bar = k.peer(path, versionOf(ctx, path)), k.bar
		more, err := r.measure(ctx)
		rows = append(rows, more...)
		if err != nil {
			return rows, err
		}
	}
	return rows, nil
}

// rivalry is two peers that are up at once and take batches of the same commands in turn.
type rivalry struct {
	ours, theirs     peer
	bar              *bar
	rounds, commands int
	patience         patience
}

// flows are the two ways in which commands come.
var flows = []struct {
	name   string
	closed bool
}{
	{fmt.Sprintf("%d at a time", peerSubmitters), true},
	{fmt.Sprintf("as fast as they are taken from %d submitters", peerSubmitters), false},
}

// measure returns two rows for each flow: how fast ours is beside theirs, and what it
// takes of the processors. Whatever goes wrong with them fails the rows, and there is no
// figure; what goes wrong with ours is an error.
func (r rivalry) measure(ctx context.Context) (rows []row, err error) {
	for i, flow := range flows {
		what := fmt.Sprintf("commands per command of %s, %s", r.theirs.name, flow.name)
		rows = append(rows, row{What: what, Unit: "x"}, row{What: what + ": CPU of each", Unit: "x"})
		if i == 0 {
			rows[i].Bar = r.bar
		}
	}
	sides := []*side{{peer: r.ours, ours: true}, {peer: r.theirs}}
	err = r.both(ctx, sides, rows)
	ours, theirs := blame(err, sides[0].close(), sides[1].close())
	if theirs != nil && ctx.Err() == nil {
		for i := range rows {
			rows[i].fail(theirs)
		}
		return rows, ours
	}
	return rows, errors.Join(ours, theirs)
}

// both measures while both are up.
func (r rivalry) both(ctx context.Context, sides []*side, rows []row) error {
	for _, s := range sides {
		if err := s.begin(ctx); err != nil {
			return err
		}
	}
	for i, flow := range flows {
		if err := r.inTurn(ctx, flow.closed, sides, &rows[2*i], &rows[2*i+1]); err != nil {
			return err
		}
	}
	return nil
}

// blame tells what went wrong with the peer from all that is ours to answer for.
func blame(errs ...error) (ours, theirs error) {
	for _, err := range errs {
		var f *failure
		if errors.As(err, &f) && !f.ours {
			theirs = errors.Join(theirs, err)
		} else {
			ours = errors.Join(ours, err)
		}
	}
	return ours, theirs
}

// inTurn fills both rows of a flow with the ratios of the rounds.
func (r rivalry) inTurn(ctx context.Context, closed bool, sides []*side, rate, cost *row) error {
	var rates, spent [2][]float64
	for round := range r.rounds + 1 {
		for turn := range sides {
			i := (turn + round) % len(sides) // who comes first differs from round to round
			perSecond, cpu, err := sides[i].batch(ctx, r, closed)
			if err != nil {
				return err
			}
			if round > 0 { // both warm up
				rates[i], spent[i] = append(rates[i], perSecond), append(spent[i], cpu)
			}
		}
	}
	for round := range r.rounds {
		rate.Values = append(rate.Values, rates[0][round]/rates[1][round])
		if spent[1][round] > 0 { // the kernel counts in steps of 10 ms
			cost.Values = append(cost.Values, spent[0][round]/spent[1][round])
		}
	}
	rate.Note = fmt.Sprintf("%s/s against %s/s; %d rounds of %d commands in turn, both up, counted by the ledger; theirs: %s; ours: %s",
		figure(median(rates[0])), figure(median(rates[1])), r.rounds, r.commands, r.theirs.setting, r.ours.setting)
	cost.Note = fmt.Sprintf("%s ms against %s ms, of the program and all that it started", figure(median(spent[0])), figure(median(spent[1])))
	return nil
}

// side is one of the two while they are measured.
type side struct {
	peer    peer
	ours    bool
	at      *place
	session session
	next    int // the number of its next command
}

// failure is what went wrong with one of them.
type failure struct {
	ours  bool
	name  string
	cause error
	log   string
}

func (f *failure) Error() string {
	text := fmt.Sprintf("%s: %v", f.name, f.cause)
	if f.log != "" {
		text += "; its log ends: " + f.log
	}
	return text
}

func (f *failure) Unwrap() error { return f.cause }

func (s *side) failed(err error) error {
	if err == nil {
		return nil
	}
	f := &failure{ours: s.ours, name: s.peer.name, cause: err}
	if s.at != nil {
		f.log = s.at.tail()
	}
	return f
}

func (s *side) begin(ctx context.Context) (err error) {
	if s.at, err = newPlace(); err != nil {
		return s.failed(err)
	}
	s.session, err = s.peer.start(ctx, s.at)
	return s.failed(err)
}

// batch returns how many commands a second it did, and the milliseconds of processors that
// it and all it has started took for each, until it had settled.
func (s *side) batch(ctx context.Context, r rivalry, closed bool) (perSecond, cpu float64, err error) {
	before, err := s.at.spent()
	if err != nil {
		return 0, 0, s.failed(err)
	}
	took, err := batch{
		session: s.session, ledger: s.at.ledger, first: s.next, count: r.commands,
		submitters: peerSubmitters, closed: closed, patience: r.patience,
	}.run(ctx)
	if err != nil {
		return 0, 0, s.failed(err)
	}
	s.next += r.commands
	after, err := s.at.spent()
	each := float64(r.commands)
	return each / took.Seconds(), milliseconds(after-before) / each, s.failed(err)
}

// close ends it and removes all it has made.
func (s *side) close() error {
	if s.session != nil {
		s.session.close()
	}
	if s.at == nil {
		return nil
	}
	at := s.at
	s.at = nil // its log goes with it
	return s.failed(at.close())
}
