package api

import (
	"context"
	"time"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/api/codes"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// cancelTimeout bounds how long a run's actor may take to record a wish: long enough for
// the one that passes over an owner which does not answer.
const cancelTimeout = 15 * time.Second

// byDefault is what a wish says of who asked for it when the caller does not.
const byDefault = "api"

// Cancel implements errandv1connect.RunServiceHandler.
func (s *runService) Cancel(ctx context.Context, request *errandv1.CancelRunRequest) (*errandv1.CancelRunResponse, error) {
	by := request.GetBy()
	c := &checker{}
	if c.words("by", by, byRunesMax); len(c.violations) > 0 {
		return nil, invalid(c.violations)
	}
	if by == "" {
		by = byDefault
	}
	found, err := s.find(ctx, request.GetId())
	if err != nil {
		return nil, err
	}
	id := found.run.GetId()
	asking, cancel := context.WithTimeout(ctx, cancelTimeout)
	defer cancel()
	answer, err := s.config.Router.AskRepeatedly(asking, actors.KindRun, id, &actorv1.Cancel{Run: id, By: by, Force: request.GetForce()})
	if err != nil {
		if ended := contextError(ctx); ended != nil {
			return nil, ended
		}
		return nil, fail(codes.OutcomeUnknown, "run %s did not say whether the wish to cancel it is recorded%s: repeat: %w", id, s.because(), err)
	}
	canceled, ok := answer.(*actorv1.Canceled)
	if !ok {
		return nil, fail(codes.Internal, "cancel run %s: its actor answered a %T", id, answer)
	}
	if canceled.GetOutcome() == actorv1.Canceled_OUTCOME_UNKNOWN {
		return nil, fail(codes.OutcomeUnknown, "the store did not say whether the wish to cancel run %s is recorded: repeat", id)
	}
	// The record, not the actor, says what became of it.
	if found, err = s.find(ctx, id); err != nil {
		return nil, err
	}
	switch canceled.GetOutcome() {
	case actorv1.Canceled_OUTCOME_RECORDED:
		return &errandv1.CancelRunResponse{Run: found.public()}, nil
	case actorv1.Canceled_OUTCOME_TERMINAL:
		return nil, fail(codes.RunTerminal, "run %s has ended already: it is %s", id, statusWord(publicStatus(found.run.GetStatus())))
	case actorv1.Canceled_OUTCOME_NOT_FOUND:
		return nil, fail(codes.RunNotFound, "no run %s", id)
	default:
		return nil, fail(codes.Internal, "cancel run %s: its actor answered %s", id, canceled.GetOutcome())
	}
}
