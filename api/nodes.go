package api

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// nodeService implements errandv1connect.NodeServiceHandler.
type nodeService struct {
	*Server
}

// List implements errandv1connect.NodeServiceHandler.
func (s *nodeService) List(ctx context.Context, _ *errandv1.ListNodesRequest) (*errandv1.ListNodesResponse, error) {
	k := s.config.Keys
	results, err := s.read(ctx, "list nodes", []records.Op{records.Range(k.Nodes()), records.Range(k.Drain("")), records.Range(k.NodeInfo(""))})
	if err != nil {
		return nil, err
	}
	draining := map[string]bool{}
	for _, kv := range results[1].KVs {
		draining[records.LastPart(kv.Key)] = true
	}
	sessions := results[0].KVs
	away, err := withoutSession(sessions, results[2].KVs)
	if err != nil {
		return nil, err
	}
	counts := make([]records.Op, 0, len(sessions)+len(away))
	for _, kv := range sessions {
		counts = append(counts, assignmentsCount(k, records.LastPart(kv.Key)))
	}
	for _, node := range away {
		counts = append(counts, assignmentsCount(k, node.GetId()))
	}
	counted, err := s.read(ctx, "list nodes", counts)
	if err != nil {
		return nil, err
	}
	response := &errandv1.ListNodesResponse{}
	for i, kv := range sessions {
		session := &recordv1.NodeSession{}
		if err := records.Decode(kv, session); err != nil {
			return nil, fail(codes.Internal, "%w", err)
		}
		name := records.LastPart(kv.Key)
		response.Nodes = append(response.Nodes, publicNode(name, session, draining[name], counted[i].Count))
	}
	s.addScores(response.GetNodes()...)
	s.addUnready(response.GetNodes()...)
	for i, node := range away {
		node.Draining, node.Sandboxes = draining[node.GetId()], counted[len(sessions)+i].Count
	}
	response.Nodes = append(response.Nodes, away...)
	slices.SortFunc(response.Nodes, func(a, b *errandv1.Node) int { return strings.Compare(a.GetId(), b.GetId()) })
	return response, nil
}

// withoutSession are the nodes that have none and that nobody has said to be dead.
func withoutSession(sessions, infos []records.KV) (away []*errandv1.Node, err error) {
	there := map[string]bool{}
	for _, kv := range sessions {
		there[records.LastPart(kv.Key)] = true
	}
	for _, kv := range infos {
		name, info := records.LastPart(kv.Key), &recordv1.NodeInfo{}
		if err := records.Decode(kv, info); err != nil {
			return nil, fail(codes.Internal, "%w", err)
		}
		if !there[name] && info.GetRemoved() == nil {
			away = append(away, &errandv1.Node{Id: name, Uuid: info.GetUuid(), Away: true})
		}
	}
	return away, nil
}

// Get implements errandv1connect.NodeServiceHandler.
func (s *nodeService) Get(ctx context.Context, request *errandv1.GetNodeRequest) (*errandv1.GetNodeResponse, error) {
	name, k := request.GetId(), s.config.Keys
	if err := records.CheckName(name); err != nil {
		return nil, invalid([]Violation{{Field: "id", Text: err.Error()}})
	}
	results, err := s.read(ctx, "get node "+name, []records.Op{records.Get(k.Node(name)), records.Get(k.Drain(name)), assignmentsCount(k, name), records.Get(k.NodeInfo(name))})
	if err != nil {
		return nil, err
	}
	if len(results[0].KVs) == 0 {
		away, err := withoutSession(nil, results[3].KVs)
		if err != nil {
			return nil, err
		}
		if len(away) == 0 {
			return nil, fail(codes.NodeNotFound, "no node %s is registered", name)
		}
		away[0].Draining, away[0].Sandboxes = len(results[1].KVs) > 0, results[2].Count
		return &errandv1.GetNodeResponse{Node: away[0]}, nil
	}
	session := &recordv1.NodeSession{}
	if err := records.Decode(results[0].KVs[0], session); err != nil {
		return nil, fail(codes.Internal, "%w", err)
	}
	response := &errandv1.GetNodeResponse{Node: publicNode(name, session, len(results[1].KVs) > 0, results[2].Count)}
	s.addScores(response.GetNode())
	s.addUnready(response.GetNode())
	s.describeNode(ctx, response.GetNode())
	if name == s.config.Node && s.config.Pulls != nil {
		response.Pulls = s.config.Pulls.Pulls()
	}
	return response, nil
}

// addUnready adds to this node, if it is among some, why it takes no runs.
func (s *Server) addUnready(nodes ...*errandv1.Node) {
	for _, node := range nodes {
		if node.GetId() == s.config.Node {
			node.Unready = s.unready()
		}
	}
}

// addScores adds to nodes what they have lost of their score.
func (s *Server) addScores(nodes ...*errandv1.Node) {
	if s.config.Scores == nil {
		return
	}
	now := s.config.Now()
	for _, lost := range s.config.Scores.LostScore() {
		for _, node := range nodes {
			if node.GetId() == lost.Node {
				node.LostScore = append(node.LostScore, &errandv1.LostScore{
					Driver: lost.Driver, Runs: int32(lost.Runs), Share: int32(lost.Share), Cause: lost.Cause, //nolint:gosec // at most placement.MarksMax
					At: timestamppb.New(now.Add(-lost.Since)), Until: timestamppb.New(now.Add(lost.Until)),
				})
			}
		}
	}
}

// assignmentsCount counts a node's assignments; its result's Count goes beyond the
// limit.
func assignmentsCount(k records.Keys, node string) records.Op {
	op := records.Range(k.AssignmentsOf(node))
	op.KeysOnly, op.Limit = true, 1
	return op
}
