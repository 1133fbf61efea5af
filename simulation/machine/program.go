package machine

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

// Program is what a command does. It is written in the words of the command:
//
//	sleep-exit DURATION CODE         it runs so long and ends with the code
//	sleep-signal DURATION SIGNAL     it runs so long and ends by the signal
//	sleep-oom DURATION               it runs so long and is killed for want of memory
//
// each of which may have, in any order before it,
//
//	fork DURATION                    a child lives so long from the start on, whatever
//	                                 becomes of the command; signals do not reach it
//	ignore-term                      TERM does nothing
//	on-term DURATION CODE            on TERM it ends so much later with the code
//	heals-at ATTEMPT                 from that attempt on it ends with 0 by itself
//
// or, instead of all that,
//
//	start-error REASON               its start is refused for good; REASON as in NOT_FOUND
//	create-error REASON              its sandbox is refused for good
//	create-refused REASON            its sandbox is refused for now
type Program struct {
	After  time.Duration
	Code   int32
	Signal int32
	OOM    bool

	Fork       time.Duration
	IgnoreTerm bool
	// OnTerm is set by on-term.
	OnTerm    bool
	TermAfter time.Duration
	TermCode  int32
	// HealsAt is 0 for never.
	HealsAt int32

	StartError    recordv1.Reason
	CreateError   recordv1.Reason
	CreateRefused recordv1.Reason
}

// Command returns the program's words.
func (p Program) Command() []string {
	var words []string
	if p.Fork > 0 {
		words = append(words, "fork", p.Fork.String())
	}
	if p.IgnoreTerm {
		words = append(words, "ignore-term")
	}
	if p.OnTerm {
		words = append(words, "on-term", p.TermAfter.String(), strconv.Itoa(int(p.TermCode)))
	}
	if p.HealsAt > 0 {
		words = append(words, "heals-at", strconv.Itoa(int(p.HealsAt)))
	}
	switch {
	case p.StartError != 0:
		return []string{"start-error", word(p.StartError)}
	case p.CreateError != 0:
		return []string{"create-error", word(p.CreateError)}
	case p.CreateRefused != 0:
		return []string{"create-refused", word(p.CreateRefused)}
	case p.OOM:
		return append(words, "sleep-oom", p.After.String())
	case p.Signal != 0:
		return append(words, "sleep-signal", p.After.String(), strconv.Itoa(int(p.Signal)))
	default:
		return append(words, "sleep-exit", p.After.String(), strconv.Itoa(int(p.Code)))
	}
}

func word(reason recordv1.Reason) string { return strings.TrimPrefix(reason.String(), "REASON_") }

// ParseProgram reads the words of a command.
func ParseProgram(command []string) (Program, error) {
	r := reader{words: command}
	var p Program
	for !r.done && r.err == nil {
		r.verb(&p)
	}
	if r.err == nil && len(r.words) > 0 {
		r.err = fmt.Errorf("nothing may follow it")
	}
	if r.err != nil {
		return Program{}, fmt.Errorf("word %d of the command: %w", len(command)-len(r.words)+1, r.err)
	}
	return p, nil
}

// of is what an attempt does.
func (p Program) of(attempt int32) Program {
	if p.HealsAt > 0 && attempt >= p.HealsAt {
		p.Code, p.Signal, p.OOM = 0, 0, false
	}
	return p
}

// reader takes words off a command.
type reader struct {
	words []string
	done  bool
	err   error
}

func (r *reader) verb(p *Program) {
	alone := len(r.words) > 0 && *p == (Program{})
	switch verb := r.next(); verb {
	case "fork":
		p.Fork = r.duration()
	case "ignore-term":
		p.IgnoreTerm = true
	case "on-term":
		p.OnTerm, p.TermAfter, p.TermCode = true, r.duration(), r.number(0, 255)
	case "heals-at":
		p.HealsAt = r.number(1, math.MaxInt32)
	case "sleep-exit":
		p.After, p.Code, r.done = r.duration(), r.number(0, 255), true
	case "sleep-signal":
		p.After, p.Signal, r.done = r.duration(), r.number(1, 64), true
	case "sleep-oom":
		p.After, p.Signal, p.OOM, r.done = r.duration(), sigkill, true, true
	case "start-error", "create-error", "create-refused":
		reason := r.reason()
		r.done = true
		switch {
		case !alone && r.err == nil:
			r.err = fmt.Errorf("%s stands alone", verb)
		case verb == "start-error":
			p.StartError = reason
		case verb == "create-error":
			p.CreateError = reason
		default:
			p.CreateRefused = reason
		}
	default:
		if r.err == nil {
			r.err = fmt.Errorf("there is no %q", verb)
		}
	}
}

func (r *reader) next() string {
	if r.err != nil {
		return ""
	}
	if len(r.words) == 0 {
		r.err = fmt.Errorf("is missing")
		return ""
	}
	word := r.words[0]
	r.words = r.words[1:]
	return word
}

func (r *reader) duration() time.Duration {
	text := r.next()
	if r.err != nil {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err == nil && d < 0 {
		err = fmt.Errorf("%s is negative", text)
	}
	r.err = err
	return d
}

func (r *reader) number(least, most int64) int32 {
	text := r.next()
	if r.err != nil {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err == nil && (n < least || n > most) {
		err = fmt.Errorf("%d is not in %d to %d", n, least, most)
	}
	r.err = err
	return int32(n)
}

func (r *reader) reason() recordv1.Reason {
	text := r.next()
	if r.err != nil {
		return 0
	}
	n, ok := recordv1.Reason_value["REASON_"+text]
	if !ok || n == 0 {
		r.err = fmt.Errorf("unknown reason %q", text)
	}
	return recordv1.Reason(n)
}
