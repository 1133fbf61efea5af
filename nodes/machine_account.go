package nodes

import (
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
)

// accountsMax bounds of how many sandboxes one answer tells.
const accountsMax = 4096

// removal is that of a sandbox which did not succeed so far.
type removal struct {
	// tries counts those that have failed.
	tries int
	// since is when the first one failed, and next when another one is made, in
	// milliseconds.
	since, next int64
	cause       string
}

// removeFailed takes note of a try that failed, and makes another one a while later.
func (m *Machine) removeFailed(id, timer string, try int, err error, again func()) {
	r := m.removals[id]
	if r == nil {
		r = &removal{since: m.now.Milli()}
		m.removals[id] = r
	}
	r.tries++
	r.cause, r.next = clip(err.Error()), m.now.Milli()+backoff(try).Milliseconds()
	m.after(timer, backoff(try), again)
}

// account says what the node has each of some sandboxes for; of one that it knows
// nothing of it says nothing.
func (m *Machine) account(ids []string) []*actorv1.SandboxAccount {
	var accounts []*actorv1.SandboxAccount
	for _, id := range ids[:min(len(ids), accountsMax)] {
		account := &actorv1.SandboxAccount{Sandbox: id}
		// What is in quarantine under a name is not what the journal knows by it.
		if o := m.orphans[id]; o != nil {
			account.Run, account.Attempt, account.Use = o.info.Run, o.info.Attempt, actorv1.SandboxUse_SANDBOX_USE_QUARANTINED
			if !o.mayHaveRun() || o.removes > 0 {
				account.Use = actorv1.SandboxUse_SANDBOX_USE_ENDED
			}
		} else if p := m.find(id); p != nil {
			account.Run, account.Attempt, account.Use = p.key.Run, p.key.Attempt, actorv1.SandboxUse_SANDBOX_USE_RUN
			switch {
			case p.tornDown:
				account.Use = actorv1.SandboxUse_SANDBOX_USE_REMOVED
			case p.tearing:
				account.Use = actorv1.SandboxUse_SANDBOX_USE_ENDED
			}
		} else {
			continue
		}
		if r := m.removals[id]; r != nil {
			account.Tries, account.Since, account.LastError, account.Next = int32(r.tries), r.since, r.cause, r.next //nolint:gosec // tries are seconds apart
		}
		accounts = append(accounts, account)
	}
	return accounts
}
