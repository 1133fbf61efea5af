package api

import (
	"context"
	"strings"
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
	if reasons := s.unready(); len(reasons) > 0 {
		seen.Unready, seen.UnreadyNode = strings.Join(reasons, "; "), s.config.Node
	}
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	ask := func(kind, identity string, message proto.Message) proto.Message {
		return s.askTo(ctx, kind, identity, message)
	}
	var asking sync.WaitGroup
	asking.Go(func() {
		seen.Owner, _ = ask(actors.KindRun, of.GetId(), &actorv1.Explain{Run: of.GetId()}).(*actorv1.Explained)
	})
	if node := of.GetPlacement().GetNode(); node != "" {
		if pull, ok := s.pullOf(node, of.GetId()); ok {
			seen.Pull = pullText(pull, s.config.Now())
		}
		asking.Go(func() {
			seen.Node, _ = ask(actors.KindNode, node, &actorv1.Describe{Run: of.GetId()}).(*actorv1.Described)
		})
	}
	asking.Wait()
	return seen
}

// askTo asks an actor until the context ends; nil is no answer.
func (s *Server) askTo(ctx context.Context, kind, identity string, message proto.Message) proto.Message {
	answer, err := s.config.Router.AskRepeatedly(ctx, kind, identity, message)
	if err != nil {
		return nil
	}
	return answer
}

// describeNode adds to a node what it says of itself. One that does not say it in time is
// told as silent.
func (s *Server) describeNode(ctx context.Context, node *errandv1.Node) {
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	told, ok := s.askTo(ctx, actors.KindNode, node.GetId(), &actorv1.Describe{}).(*actorv1.Described)
	if !ok {
		node.Silent = true
		return
	}
	node.QuarantinedCount = told.GetQuarantinedCount()
	for _, thing := range told.GetQuarantined() {
		node.Quarantined = append(node.Quarantined, &errandv1.Quarantined{
			Sandbox: thing.GetSandbox(), Driver: thing.GetDriver(), Run: thing.GetRun(), Attempt: thing.GetAttempt(),
			Since: timeOf(thing.GetSince()), Until: timeOf(thing.GetUntil()), Reason: thing.GetReason(), Running: thing.GetRunning(),
		})
	}
}

// pullOf is the pull that a run waits for, known of this node's runs only.
func (s *Server) pullOf(node, id string) (*errandv1.ImagePull, bool) {
	if node != s.config.Node || s.config.Pulls == nil {
		return nil, false
	}
	return s.config.Pulls.PullOf(id)
}

// pullText says how far a pull has come.
func pullText(pull *errandv1.ImagePull, now time.Time) string {
	switch pull.GetPhase() {
	case errandv1.PullPhase_PULL_PHASE_WAITING:
		return "others come first"
	case errandv1.PullPhase_PULL_PHASE_RESOLVING:
		return "the registry is asked what the name means"
	case errandv1.PullPhase_PULL_PHASE_FETCHING:
		total := ""
		if pull.GetTotalBytes() > 0 {
			total = " of " + records.SizeText(pull.GetTotalBytes())
		}
		return records.SizeText(pull.GetBytes()) + total + " are here, " + records.SizeText(pull.GetBytesPerSecond()) + "/s"
	case errandv1.PullPhase_PULL_PHASE_UNPACKING:
		return "all of its " + records.SizeText(pull.GetTotalBytes()) + " are here and it is unpacked"
	case errandv1.PullPhase_PULL_PHASE_FAILED:
		text := "the last try failed: " + pull.GetLastError()
		if wait := pull.GetRetryAt().AsTime().Sub(now).Round(time.Second); pull.GetRetryAt() != nil && wait > 0 {
			text += "; the registry does not want to be asked again for " + wait.String()
		}
		return text
	default:
		return ""
	}
}

// publicHistory is what became of a run as the API shows it.
func publicHistory(of *recordv1.Run) *errandv1.RunHistory {
	events, leftOut := run.History(of)
	shown := &errandv1.RunHistory{LeftOut: int32(leftOut)} //nolint:gosec // a record has it as 32 bits
	for _, event := range events {
		shown.Events = append(shown.Events, &errandv1.RunEvent{
			At: timeOf(event.At), Kind: records.Word(event.Kind), Attempt: event.Attempt, Node: event.Node, Message: event.Text,
		})
	}
	return shown
}
