package api

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/actors/run"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// explainTimeout bounds how long the owner of a run and its node may take to say what
// they know of it.
const explainTimeout = 2 * time.Second

// Explain implements errandv1connect.RunServiceHandler.
func (s *runService) Explain(ctx context.Context, request *errandv1.ExplainRunRequest) (*errandv1.ExplainRunResponse, error) {
	found, err := s.find(ctx, request.GetId())
	if err != nil {
		return nil, err
	}
	response := &errandv1.ExplainRunResponse{Run: found.public()}
	for _, cause := range run.Why(s.config.Now(), found.run, s.unrecorded(ctx, found.run)) {
		response.Causes = append(response.Causes, &errandv1.Cause{
			Code: string(cause.Code), Message: cause.Text, Node: cause.Node, Attempt: cause.Attempt, At: timeOf(cause.At),
		})
	}
	return response, nil
}

// unrecorded asks the owner of a run and its node for what no record holds. Who does not
// answer in time is left out.
func (s *Server) unrecorded(ctx context.Context, of *recordv1.Run) (seen run.Unrecorded) {
	if records.Terminal(of.GetStatus()) {
		return seen
	}
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	ask := func(kind, identity string, message proto.Message) proto.Message {
		answer, err := s.config.Router.AskRepeatedly(ctx, kind, identity, message)
		if err != nil {
			return nil
		}
		return answer
	}
	var asking sync.WaitGroup
	asking.Go(func() {
		seen.Owner, _ = ask(actors.KindRun, of.GetId(), &actorv1.Explain{Run: of.GetId()}).(*actorv1.Explained)
	})
	if node := of.GetPlacement().GetNode(); node != "" {
		asking.Go(func() {
			seen.Node, _ = ask(actors.KindNode, node, &actorv1.Describe{Run: of.GetId()}).(*actorv1.Described)
		})
	}
	asking.Wait()
	return seen
}
