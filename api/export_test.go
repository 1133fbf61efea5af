package api

import "time"

// SetQuiet makes streams of changes say something after a shorter time.
func (s *Server) SetQuiet(quiet time.Duration) { s.quiet = quiet }

// SetStreams makes so many streams seem to be open.
func (s *Server) SetStreams(n int64) { s.streams.Store(n) }

// StreamsMax is how many there may be.
const StreamsMax = streamsMax

// StrangersMax is how many connections without a call with the token there may be.
const StrangersMax = strangersMax

// StrangerAnswersMax is how many answers may be under way to requests without the token.
const StrangerAnswersMax = strangerAnswersMax

// ConnectionBounds is connectionBounds.
var ConnectionBounds = connectionBounds

// AnswerBy is answerBy, and CallTimeout callTimeout.
var (
	AnswerBy    = answerBy
	CallTimeout = callTimeout
)
