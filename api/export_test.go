package api

import "time"

// SetQuiet makes streams of changes say something after a shorter time.
func (s *Server) SetQuiet(quiet time.Duration) { s.quiet = quiet }

// AnswerBy is answerBy, and CallTimeout callTimeout.
var (
	AnswerBy    = answerBy
	CallTimeout = callTimeout
)
