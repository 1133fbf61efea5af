package virtual

import (
	"math/rand/v2"
	"time"
)

// Span is a range of durations, both ends included. The zero value is no time.
type Span struct {
	Min time.Duration `json:"min"`
	Max time.Duration `json:"max"`
}

// Draw draws a duration of the span, each as likely as any other. A span of one
// duration draws nothing from the stream.
func (s Span) Draw(random *rand.Rand) time.Duration {
	if s.Max <= s.Min {
		return s.Min
	}
	return s.Min + time.Duration(random.Int64N(int64(s.Max-s.Min)+1))
}

// Chance is true with probability p. What is certain draws nothing from the stream.
func Chance(random *rand.Rand, p float64) bool {
	switch {
	case p <= 0:
		return false
	case p >= 1:
		return true
	default:
		return random.Float64() < p
	}
}
