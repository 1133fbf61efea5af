package api_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/api"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// pulling is a node that pulls one image, for every run.
type pulling struct{}

func (pulling) PullOf(string) (*errandv1.ImagePull, bool) {
	return &errandv1.ImagePull{Phase: errandv1.PullPhase_PULL_PHASE_FETCHING, Bytes: 3 << 20, TotalBytes: 40<<20 + 1<<19, BytesPerSecond: 1536}, true
}

func (p pulling) Pulls() []*errandv1.ImagePull {
	pull, _ := p.PullOf("")
	return []*errandv1.ImagePull{pull}
}

func explainRig(t *testing.T, run *recordv1.Run, ask func(proto.Message) (proto.Message, error)) *rig {
	r := newRig(t, func(config *api.Config) { config.Node, config.Pulls = "n1", pulling{} })
	r.router.ask = ask
	r.commit(r.keys.Create(run, 1))
	return r
}

func codesOf(causes []*errandv1.Cause) (codes []string) {
	for _, cause := range causes {
		codes = append(codes, cause.GetCode())
	}
	return codes
}

func placedRun() *recordv1.Run {
	return &recordv1.Run{
		Id: "r.default.placed", App: "default", Status: recordv1.Status_STATUS_PENDING, QueuedAt: 1, Attempt: 1,
		Placement: &recordv1.Placement{Node: "n1", Number: 1, PlacedAt: 2},
		Attempts:  []*recordv1.Attempt{{Number: 1, Node: "n1", Placement: 1}},
	}
}

func TestExplainTellsWhatTheNodeOfAPlacedRunDoes(t *testing.T) {
	r := explainRig(t, placedRun(), func(message proto.Message) (proto.Message, error) {
		if _, ok := message.(*actorv1.Explain); ok {
			return &actorv1.Explained{Active: true, Attempt: 1}, nil
		}
		return &actorv1.Described{Node: "n1", Placement: &actorv1.PlacementStep{Attempt: 1, Placement: 1, Step: actorv1.Step_STEP_CREATING, Image: "busybox"}}, nil
	})
	response, err := r.runs.Explain(t.Context(), &errandv1.ExplainRunRequest{Id: "r.default.placed"})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(response.GetCauses(), func(c *errandv1.Cause) bool { return c.GetCode() == "PULLING" })
	if i < 0 || response.GetCauses()[i].GetMessage() != "node n1 pulls image busybox: 3 MiB of 40.5 MiB are here, 1.5 KiB/s" {
		t.Errorf("%v", response.GetCauses())
	}
}

func TestExplainNamesWhoDoesNotAnswer(t *testing.T) {
	r := explainRig(t, placedRun(), func(proto.Message) (proto.Message, error) { return nil, errors.New("nobody is there") })
	response, err := r.runs.Explain(t.Context(), &errandv1.ExplainRunRequest{Id: "r.default.placed"})
	if codes := codesOf(response.GetCauses()); err != nil || !slices.Contains(codes, "NODE_SILENT") {
		t.Errorf("%v, %v", codes, err)
	}
}

func TestExplainAsksNobodyOfARunThatHasEnded(t *testing.T) {
	run := placedRun()
	run.Status, run.Reason, run.EndedAt, run.ExitCode = recordv1.Status_STATUS_FAILED, recordv1.Reason_REASON_EXIT_CODE, 3, proto.Int32(7)
	run.Placement = nil
	run.Attempts[0].Status, run.Attempts[0].Reason, run.Attempts[0].EndedAt, run.Attempts[0].ExitCode = run.Status, run.Reason, 3, proto.Int32(7)
	r := explainRig(t, run, func(proto.Message) (proto.Message, error) {
		t.Error("an actor was asked")
		return nil, errors.New("no")
	})
	response, err := r.runs.Explain(t.Context(), &errandv1.ExplainRunRequest{Id: run.GetId()})
	if codes := codesOf(response.GetCauses()); err != nil || !slices.Contains(codes, "EXIT_CODE") || !slices.Contains(codes, "NOT_RETRIED") {
		t.Errorf("%v, %v", codes, err)
	}
}

func TestHistoryComesOnlyWhenItIsAskedFor(t *testing.T) {
	r := explainRig(t, placedRun(), nil)
	for _, wanted := range []bool{false, true} {
		got, err := r.runs.Get(t.Context(), &errandv1.GetRunRequest{Id: "r.default.placed", History: wanted})
		if err != nil || (got.GetHistory() != nil) != wanted {
			t.Fatalf("%v: %v, %v", wanted, got.GetHistory(), err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := r.runs.Watch(ctx, &errandv1.WatchRunRequest{Id: "r.default.placed", History: wanted})
		if err != nil || !stream.Receive() || (stream.Msg().GetHistory() != nil) != wanted {
			t.Errorf("watch, %v: %v", wanted, err)
		}
		cancel()
		_ = stream.Close()
		if kinds := got.GetHistory().GetEvents(); wanted && (len(kinds) != 2 || kinds[0].GetKind() != "QUEUED" || kinds[1].GetKind() != "PLACED") {
			t.Errorf("%v", kinds)
		}
	}
}

func TestNodeTellsItsQuarantineAndOneThatDoesNotAnswerIsSilent(t *testing.T) {
	answers := true
	r := explainRig(t, placedRun(), func(proto.Message) (proto.Message, error) {
		if !answers {
			return nil, errors.New("nobody is there")
		}
		return &actorv1.Described{Node: "n1", QuarantinedCount: 1, Quarantined: []*actorv1.QuarantinedThing{{Sandbox: "s", Run: "r.default.x", Since: 5, Reason: "strange"}}}, nil
	})
	session := records.Encode(&recordv1.NodeSession{Uuid: "u", SandboxesMax: 8, RegisteredAt: 1000})
	r.commit(records.Txn{Then: []records.Op{{Kind: records.OpPut, Key: r.keys.Node("n1"), Value: session}}})
	got, err := r.nodes.Get(t.Context(), &errandv1.GetNodeRequest{Id: "n1"})
	if q := got.GetNode().GetQuarantined(); err != nil || len(q) != 1 || q[0].GetSandbox() != "s" || got.GetNode().GetSilent() || len(got.GetPulls()) != 1 {
		t.Errorf("%v, %v", got, err)
	}
	answers = false
	got, err = r.nodes.Get(t.Context(), &errandv1.GetNodeRequest{Id: "n1"})
	if err != nil || !got.GetNode().GetSilent() {
		t.Errorf("%v, %v", got, err)
	}
	if _, err = r.nodes.Get(t.Context(), &errandv1.GetNodeRequest{Id: "n2"}); connect.CodeOf(err) != connect.CodeNotFound {
		t.Error(err)
	}
}

// TestExplainHasEveryReasonOfTheAPI: the reasons of the API and those of records are the
// same, and each is the code of a cause with a sentence.
func TestExplainHasEveryReasonOfTheAPI(t *testing.T) {
	reasons := errandv1.Reason(0).Descriptor().Values()
	if stored := recordv1.Reason(0).Descriptor().Values(); stored.Len() != reasons.Len() {
		t.Errorf("%d reasons in the API, %d in records", reasons.Len(), stored.Len())
	}
	r := explainRig(t, placedRun(), nil)
	for i := range reasons.Len() {
		public := reasons.Get(i)
		reason, ok := recordv1.Reason_value[string(public.Name())]
		if !ok {
			t.Errorf("no record has the reason %s", public.Name())
		}
		if public.Number() == 0 {
			continue
		}
		run := placedRun()
		run.Id, run.Placement = "r.default.reason"+strconv.Itoa(i), nil
		run.Status, run.Reason, run.EndedAt = recordv1.Status_STATUS_FAILED, recordv1.Reason(reason), 3
		run.Attempts[0].Status, run.Attempts[0].Reason, run.Attempts[0].EndedAt = run.GetStatus(), run.GetReason(), 3
		r.commit(r.keys.Create(run, 1))
		response, err := r.runs.Explain(t.Context(), &errandv1.ExplainRunRequest{Id: run.GetId()})
		at := slices.IndexFunc(response.GetCauses(), func(c *errandv1.Cause) bool { return "REASON_"+c.GetCode() == string(public.Name()) })
		if err != nil || at < 0 || response.GetCauses()[at].GetMessage() == "" || response.GetRun().GetReason().Number() != public.Number() {
			t.Errorf("%s: %v, %v", public.Name(), response, err)
		}
	}
}
