package api

import (
	"context"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

const (
	// removedRunsMax bounds the runs that a removal names, assignmentsPage those that are
	// read at once.
	removedRunsMax  = 1000
	assignmentsPage = 64
	// removeTries bounds how often a removal that another write has overtaken is decided
	// anew.
	removeTries = 5
)

// Remove implements errandv1connect.NodeServiceHandler. It only takes the word; what
// follows from it is the business of the runs' actors, which look for it now and then and
// are told to do so now.
func (s *nodeService) Remove(ctx context.Context, request *errandv1.RemoveNodeRequest) (*errandv1.RemoveNodeResponse, error) {
	name, by := request.GetId(), request.GetBy()
	c := &checker{}
	if err := records.CheckName(name); err != nil {
		c.add("id", "%s", err.Error())
	}
	if c.words("by", by, byRunesMax); len(c.violations) > 0 {
		return nil, invalid(c.violations)
	}
	if by == "" {
		by = byDefault
	}
	for range removeTries {
		// They are read first: by the word they begin to end. Nothing is placed on a node
		// without a session.
		response, waiting, err := s.affected(ctx, name)
		if err != nil {
			return nil, err
		}
		word, done, err := s.takeWord(ctx, name, by, request.GetDead())
		switch {
		case err != nil:
			return nil, err
		case !done:
		case word == nil:
			return response, nil
		default:
			for _, run := range waiting {
				s.config.Router.Tell(actors.KindRun, run, &actorv1.Wake{Run: run})
			}
			response.RemovedAt, response.RemovedBy = timeOf(word.GetAt()), word.GetBy()
			return response, nil
		}
	}
	return nil, fail(codes.StoreConflict, "remove node %s: others write what is known of it all the time: try again", name)
}

// takeWord makes sure that a node has no session, and of a dead one that the store holds
// somebody's word for it, which it returns. It is not done when somebody else has written
// in between.
func (s *nodeService) takeWord(ctx context.Context, name, by string, dead bool) (word *recordv1.Removal, done bool, err error) {
	k, doing := s.config.Keys, "remove node "+name
	results, err := s.read(ctx, doing, []records.Op{records.Get(k.Node(name)), records.Get(k.NodeInfo(name))})
	if err != nil {
		return nil, false, err
	}
	switch {
	case len(results[0].KVs) > 0:
		return nil, false, fail(codes.NodeHasSession, "node %s has a session, so its machine is not known to be dead. If it is to go, stop its daemon; "+
			"if it was switched off or lost just now, repeat this when its session is over, which takes as long as the session lasts without a renewal (a minute by default)", name)
	case len(results[1].KVs) == 0:
		return nil, false, fail(codes.NodeNotFound, "no node %s was ever registered", name)
	}
	kv, info := results[1].KVs[0], &recordv1.NodeInfo{}
	if err := records.Decode(kv, info); err != nil {
		return nil, false, fail(codes.Internal, "%w", err)
	}
	if !dead || info.GetRemoved() != nil {
		return info.GetRemoved(), true, nil
	}
	info.Removed = &recordv1.Removal{At: s.nowMs(), By: by}
	result, err := s.config.Store.Do(ctx, k.Remove(name, kv.Mod, info))
	if err != nil {
		return nil, false, storeError(ctx, doing, err)
	}
	return info.GetRemoved(), result.Succeeded, nil
}

// affected tells which runs are placed on a node; waiting are all those that wait for it.
func (s *nodeService) affected(ctx context.Context, name string) (response *errandv1.RemoveNodeResponse, waiting []string, err error) {
	response = &errandv1.RemoveNodeResponse{}
	err = s.assigned(ctx, "remove node "+name, name, func(assignment *recordv1.Assignment) {
		if assignment.GetSpec().GetRetry().GetOnNodeLoss() != recordv1.OnNodeLoss_ON_NODE_LOSS_WAIT {
			response.OthersCount++
			return
		}
		waiting = append(waiting, assignment.GetRun())
	})
	response.Waiting, response.WaitingCount = waiting[:min(len(waiting), removedRunsMax)], int64(len(waiting))
	return response, waiting, err
}

// assigned shows every assignment of a node, in the order of the runs' ids.
func (s *nodeService) assigned(ctx context.Context, doing, node string, show func(*recordv1.Assignment)) error {
	prefix := s.config.Keys.AssignmentsOf(node)
	scan := records.Scan{From: prefix, End: prefixEnd(prefix), Limit: assignmentsPage}
	for {
		page, err := s.scan(ctx, doing, []records.Scan{scan})
		if err != nil {
			return err
		}
		for _, kv := range page[0] {
			assignment := &recordv1.Assignment{}
			if err := records.Decode(kv, assignment); err != nil {
				return fail(codes.Internal, "%w", err)
			}
			show(assignment)
		}
		if len(page[0]) < assignmentsPage {
			return nil
		}
		scan.From = page[0][len(page[0])-1].Key + "\x00"
	}
}
