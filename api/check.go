package api

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/errand-run/errand/actors"
	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

// Inventory finds what the sandboxes of this node have on its machine.
type Inventory interface {
	// Take returns all that there is, each thing once, and in words what could not be
	// looked at. It returns in good time whatever hangs.
	Take(ctx context.Context) (things []sandbox.Thing, unseen []string)
}

const (
	// checkTime is how long something has to be there that should not, until it is told:
	// sandboxes come and go while an inventory is taken.
	checkTime = 3 * time.Second
	// checkPause is how long it takes until it is looked for again.
	checkPause = 250 * time.Millisecond
	// leftoversShown bounds what an answer lists.
	leftoversShown = 1000
	// accountsAsked bounds of how many sandboxes a node is asked at a time.
	accountsAsked = 2048
)

// Check implements errandv1connect.NodeServiceHandler.
func (s *nodeService) Check(ctx context.Context, request *errandv1.CheckNodeRequest) (*errandv1.CheckNodeResponse, error) {
	switch id := request.GetId(); {
	case id != "" && records.CheckName(id) != nil:
		return nil, invalid([]Violation{{Field: "id", Text: records.CheckName(id).Error()}})
	case id != "" && id != s.config.Node:
		return nil, fail(codes.NodeNotFound, "this is node %s: node %s can be checked at its own address only", s.config.Node, id)
	case s.config.Inventory == nil:
		return nil, fail(codes.NotSupported, "this node can not look at its machine")
	}
	// One at a time: it costs the machine something.
	select {
	case s.checking <- struct{}{}:
		defer func() { <-s.checking }()
	case <-ctx.Done():
		return nil, contextError(ctx)
	}
	found, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	return found.response(s.config.Node, s.config.Now()), nil
}

// look takes inventories until all that is there is accounted for, or has been there for
// checkTime though it should not.
func (s *nodeService) look(ctx context.Context) (*checked, error) {
	var suspects map[string]bool
	for until := s.config.Now().Add(checkTime); ; {
		c := &checked{accounts: map[string]*actorv1.SandboxAccount{}}
		c.things, c.unseen = s.config.Inventory.Take(ctx)
		if err := s.ask(ctx, c); err != nil {
			return nil, err
		}
		suspects = c.suspects(suspects)
		if len(suspects) == 0 || s.config.Now().After(until) {
			c.remain = suspects
			return c, nil
		}
		select {
		case <-time.After(checkPause):
		case <-ctx.Done():
			return nil, contextError(ctx)
		}
	}
}

// ask asks the node what it has the sandboxes for whose things were found. It is asked
// after they were found: what it does not know by then should not be there.
func (s *nodeService) ask(ctx context.Context, c *checked) error {
	ids := map[string]bool{}
	for _, thing := range c.things {
		if thing.Sandbox != "" {
			ids[thing.Sandbox] = true
		}
	}
	for some := range slices.Chunk(slices.Sorted(maps.Keys(ids)), accountsAsked) {
		asking, cancel := context.WithTimeout(ctx, explainTimeout)
		told, ok := s.askTo(asking, actors.KindNode, s.config.Node, &actorv1.Describe{Sandboxes: some}).(*actorv1.Described)
		cancel()
		if !ok {
			return fail(codes.Deadline, "the node does not say what it has its sandboxes for: ask again")
		}
		for _, account := range told.GetAccounts() {
			c.accounts[account.GetSandbox()] = account
		}
	}
	return nil
}

// checked is what one look has found.
type checked struct {
	things   []sandbox.Thing
	unseen   []string
	accounts map[string]*actorv1.SandboxAccount
	// remain are the things that should not be there and were, each time.
	remain map[string]bool
}

// suspects are the things that should not be there, and were not before either unless
// that is nil.
func (c *checked) suspects(before map[string]bool) map[string]bool {
	found := map[string]bool{}
	for _, thing := range c.things {
		if before != nil && !before[thing.String()] {
			continue // it has come meanwhile
		}
		account := c.accounts[thing.Sandbox]
		suspect := account != nil || thing.Keeper == ""
		switch account.GetUse() {
		case actorv1.SandboxUse_SANDBOX_USE_RUN, actorv1.SandboxUse_SANDBOX_USE_QUARANTINED:
			suspect = false
		case actorv1.SandboxUse_SANDBOX_USE_ENDED:
			// One whose removal has failed is told without another look.
			suspect = account.GetTries() == 0
		default:
		}
		if suspect {
			found[thing.String()] = true
		}
	}
	return found
}

// response tells of what remains and of what is kept.
func (c *checked) response(node string, now time.Time) *errandv1.CheckNodeResponse {
	response := &errandv1.CheckNodeResponse{Id: node, Unseen: c.unseen, Things: int64(len(c.things))}
	needed := map[string]bool{}
	for _, thing := range c.things {
		account := c.accounts[thing.Sandbox]
		told := &errandv1.Leftover{
			Kind: string(thing.Kind), Name: thing.Name, Sandbox: thing.Sandbox, Run: account.GetRun(), Attempt: account.GetAttempt(),
			Since: timestampOf(thing.Since),
		}
		removing := account.GetUse() == actorv1.SandboxUse_SANDBOX_USE_ENDED
		switch {
		case account.GetUse() == actorv1.SandboxUse_SANDBOX_USE_RUN:
			needed[thing.Sandbox] = true
		case account.GetUse() == actorv1.SandboxUse_SANDBOX_USE_QUARANTINED:
			told.Reason, told.Outlook = "its sandbox is in quarantine", "it goes with the sandbox: errand node show "+node+" tells when"
			response.Kept = append(response.Kept, told)
		case account == nil && thing.Keeper != "":
			told.Reason, told.Outlook = thing.Keeper, keeperOutlook(thing, now)
			response.Kept = append(response.Kept, told)
		case removing && account.GetTries() > 0:
			told.Removing = true
			told.Reason = fmt.Sprintf("its run has ended; it could not be removed since %s: %s (tried %d times)",
				time.UnixMilli(account.GetSince()).UTC().Format(time.RFC3339), account.GetLastError(), account.GetTries())
			told.Outlook = fmt.Sprintf("it is tried again in %s, and until it is done", max(0, time.UnixMilli(account.GetNext()).Sub(now)).Round(time.Second))
			response.Left = append(response.Left, told)
		case c.remain[thing.String()]:
			told.Removing = removing
			told.Reason, told.Outlook = leftBecause(thing, account)
			response.Left = append(response.Left, told)
		}
	}
	response.Sandboxes = int64(len(needed))
	response.LeftCount, response.KeptCount = int64(len(response.Left)), int64(len(response.Kept))
	response.Left = response.Left[:min(len(response.Left), leftoversShown)]
	response.Kept = response.Kept[:min(len(response.Kept), leftoversShown)]
	return response
}

// leftBecause says why a thing is there that should not be, and what becomes of it.
func leftBecause(thing sandbox.Thing, account *actorv1.SandboxAccount) (reason, outlook string) {
	const swept = "the node removes it within 3 minutes; if something of it runs it is stopped, and kept in quarantine for a day"
	switch {
	case account.GetUse() == actorv1.SandboxUse_SANDBOX_USE_ENDED:
		return "its run has ended, and it is being removed", "the removal goes on until it is done"
	case account != nil:
		return "its run has ended and its sandbox was removed, but not this", swept
	case thing.Sandbox != "":
		return "no run of this node accounts for it", swept
	case thing.Kind == sandbox.KindContainerd:
		return "it was started for this data directory, and its files are not there any more", "the next start of the node ends it, if it has no container or their loss was accepted"
	case thing.Kind == sandbox.KindTemporary:
		return "a write was broken off before the file got its name", "the next write of that file replaces it"
	default:
		return "nothing tells of which sandbox it is", "nobody removes it: it may be removed by hand"
	}
}

// keeperOutlook says what becomes of what is kept without a sandbox.
func keeperOutlook(thing sandbox.Thing, now time.Time) string {
	if thing.Until.IsZero() {
		return "containerd removes it by itself once nobody has come back to it for a day"
	}
	return fmt.Sprintf("containerd removes it in %s", strings.TrimSuffix(max(0, thing.Until.Sub(now)).Round(time.Minute).String(), "0s"))
}

func timestampOf(at time.Time) *timestamppb.Timestamp {
	if at.IsZero() {
		return nil
	}
	return timestamppb.New(at)
}
