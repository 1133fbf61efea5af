package api

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// The defaults and bounds of what is tried again.
const (
	BackoffDefault       = 10 * time.Second
	BackoffMaxDefault    = 5 * time.Minute
	JitterPercentDefault = 10

	retriesMax = 100
	backoffMax = time.Hour
	// failuresMax bounds the words of a set of failures.
	failuresMax = 32
	codeMax     = 255
)

// unattended are the triggers of runs at which nobody waits: those may be tried again.
func unattended(trigger errandv1.Trigger) bool {
	return trigger != errandv1.Trigger_TRIGGER_MANUAL && trigger != errandv1.Trigger_TRIGGER_CONSOLE
}

// retry checks what is to be tried again and fills in its defaults.
func (c *checker) retry(trigger errandv1.Trigger, retry *errandv1.Retry) *recordv1.Retry {
	if retry == nil {
		return nil
	}
	if !unattended(trigger) && triesAgain(retry) {
		c.add("spec.retry", "a %s run is not tried again by itself, somebody waits for it: say no more than on_node_loss FAIL or WAIT, or use the trigger API",
			strings.TrimPrefix(trigger.String(), "TRIGGER_"))
	}
	if n := retry.GetRetries(); n < 0 || n > retriesMax {
		c.add("spec.retry.retries", "must be 0 to %d, is %d", retriesMax, n)
	}
	jitter := int32(JitterPercentDefault)
	if retry.JitterPercent != nil {
		jitter = retry.GetJitterPercent()
	}
	if jitter < 0 || jitter > 100 {
		c.add("spec.retry.jitter_percent", "must be 0 to 100, is %d", jitter)
	}
	made := &recordv1.Retry{
		Retries:       retry.GetRetries(),
		Only:          c.failures("spec.retry.only", retry.GetOnly()),
		Never:         c.failures("spec.retry.never", retry.GetNever()),
		BackoffMs:     c.duration("spec.retry.backoff", retry.GetBackoff(), BackoffDefault, backoffMax),
		JitterPercent: jitter,
		OnNodeLoss:    c.onNodeLoss(retry),
	}
	most := max(BackoffMaxDefault, time.Duration(made.BackoffMs)*time.Millisecond)
	made.BackoffMaxMs = c.duration("spec.retry.backoff_max", retry.GetBackoffMax(), most, backoffMax)
	if retry.GetBackoffMax() != nil && made.BackoffMaxMs < made.BackoffMs {
		c.add("spec.retry.backoff_max", "must not be below backoff")
	}
	return made
}

// triesAgain tells whether a request asks for another attempt, or does not say that it
// does not.
func triesAgain(retry *errandv1.Retry) bool {
	switch retry.GetOnNodeLoss() {
	case errandv1.OnNodeLoss_ON_NODE_LOSS_FAIL, errandv1.OnNodeLoss_ON_NODE_LOSS_WAIT:
		return retry.GetRetries() != 0
	default:
		return true
	}
}

func (c *checker) onNodeLoss(retry *errandv1.Retry) recordv1.OnNodeLoss {
	switch retry.GetOnNodeLoss() {
	case errandv1.OnNodeLoss_ON_NODE_LOSS_UNSPECIFIED:
		if retry.GetRetries() > 0 {
			return recordv1.OnNodeLoss_ON_NODE_LOSS_RETRY
		}
		return recordv1.OnNodeLoss_ON_NODE_LOSS_FAIL
	case errandv1.OnNodeLoss_ON_NODE_LOSS_FAIL:
		return recordv1.OnNodeLoss_ON_NODE_LOSS_FAIL
	case errandv1.OnNodeLoss_ON_NODE_LOSS_RETRY:
		return recordv1.OnNodeLoss_ON_NODE_LOSS_RETRY
	case errandv1.OnNodeLoss_ON_NODE_LOSS_WAIT:
		return recordv1.OnNodeLoss_ON_NODE_LOSS_WAIT
	default:
		c.add("spec.retry.on_node_loss", "must be FAIL, RETRY or WAIT, is %d", retry.GetOnNodeLoss())
		return recordv1.OnNodeLoss_ON_NODE_LOSS_FAIL
	}
}

// failures reads the words of a set; none are no set.
func (c *checker) failures(field string, words []string) *recordv1.Failures {
	if len(words) == 0 {
		return nil
	}
	if len(words) > failuresMax {
		c.add(field, "has %d entries, the most is %d", len(words), failuresMax)
		return nil
	}
	set := &recordv1.Failures{}
	for i, word := range words {
		switch word {
		case "signal":
			set.Signal = true
		case "oom":
			set.OomKilled = true
		case "timeout":
			set.Timeout = true
		default:
			codes, ok := codesOf(word)
			if !ok {
				c.add(fmt.Sprintf("%s[%d]", field, i), "must be a code from 1 to %d, a range such as 2-63, signal, oom or timeout, is %s", codeMax, quoteShort(word))
				continue
			}
			set.Codes = append(set.Codes, codes)
		}
	}
	return set
}

// codesOf reads one code or a range of them.
func codesOf(word string) (*recordv1.CodeRange, bool) {
	from, to, isRange := strings.Cut(word, "-")
	if !isRange {
		to = from
	}
	first, err := strconv.ParseUint(from, 10, 8)
	if err != nil || first == 0 {
		return nil, false
	}
	last, err := strconv.ParseUint(to, 10, 8)
	if err != nil || last < first {
		return nil, false
	}
	return &recordv1.CodeRange{First: int32(first), Last: int32(last)}, true
}

// publicRetry shows what is tried again in the words of a request, every default
// filled in.
func publicRetry(retry *recordv1.Retry) *errandv1.Retry {
	if retry == nil {
		return nil
	}
	return &errandv1.Retry{
		Retries: retry.GetRetries(), Only: wordsOf(retry.GetOnly()), Never: wordsOf(retry.GetNever()),
		Backoff: durationOf(retry.GetBackoffMs()), BackoffMax: durationOf(retry.GetBackoffMaxMs()),
		JitterPercent: new(retry.GetJitterPercent()), OnNodeLoss: errandv1.OnNodeLoss(retry.GetOnNodeLoss()),
	}
}

func wordsOf(set *recordv1.Failures) []string {
	var words []string
	for _, r := range set.GetCodes() {
		word := strconv.Itoa(int(r.GetFirst()))
		if r.GetLast() != r.GetFirst() {
			word += "-" + strconv.Itoa(int(r.GetLast()))
		}
		words = append(words, word)
	}
	for _, kind := range []struct {
		in   bool
		word string
	}{{set.GetSignal(), "signal"}, {set.GetOomKilled(), "oom"}, {set.GetTimeout(), "timeout"}} {
		if kind.in {
			words = append(words, kind.word)
		}
	}
	return words
}

// waitsForAttempt says what a run waits for between two attempts; empty for one that
// does not.
func waitsForAttempt(run *recordv1.Run) string {
	attempts := run.GetAttempts()
	if len(attempts) == 0 || run.GetPlacement() != nil || attempts[len(attempts)-1].GetNumber() != run.GetAttempt()-1 {
		return ""
	}
	before := attempts[len(attempts)-1]
	return fmt.Sprintf("attempt %d follows after a wait; attempt %d: %s", run.GetAttempt(), before.GetNumber(), before.GetMessage())
}
