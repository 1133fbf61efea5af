package etcd

import (
	"slices"

	"github.com/errand-run/errand/cluster/records"
)

// follow is one followed prefix of a client.
type follow struct {
	client  *Client
	prefix  string
	deliver func(records.Batch)
	stopped bool
	// watch is nil while it begins again.
	watch *watch
	// position is up to where the daemon was told, before the watch was begun as of
	// begun.
	position, begun int64
	backoff         backoff
}

// Follow implements actors.Store: a Reset, then changes, and another Reset after
// whatever the watch could not bridge. Its watch requires a leader, and is looked
// after by a probe as in production.
func (c *Client) Follow(prefix string, deliver func(records.Batch)) (stop func()) {
	f := &follow{client: c, prefix: prefix, deliver: deliver}
	if c.closed {
		return func() {}
	}
	c.follows = append(c.follows, f)
	f.begin()
	return f.stop
}

func (f *follow) stop() {
	if f.stopped {
		return
	}
	f.stopped = true
	f.drop()
	if at := slices.Index(f.client.follows, f); at >= 0 {
		f.client.follows = slices.Delete(f.client.follows, at, at+1)
	}
}

// begin watches and reads.
func (f *follow) begin() {
	if f.stopped {
		return
	}
	f.begun = f.position
	f.client.single(&call{verb: verbLoad, follow: f}, readAttemptTimeout)
}

// again begins once more after a while.
func (f *follow) again() {
	f.drop()
	if f.stopped {
		return
	}
	if f.position > f.begun {
		f.backoff.reset()
	}
	f.client.cluster.timeline.After(f.backoff.next(), f.begin)
}

// drop forgets the watch.
func (f *follow) drop() {
	if f.watch != nil {
		f.client.cluster.forget(f.watch)
		f.watch = nil
	}
}

// load reads a prefix at a member and lets the watch begin from there.
func (c *Cluster) load(k *call) {
	f := k.follow
	wait := c.latency(f.client.link)
	if !f.client.link.answers(k.member) || c.timeline.Now()+wait >= k.until {
		c.await(k)
		return
	}
	k.done = true
	if k.stopTimer != nil {
		k.stopTimer()
		k.stopTimer = nil
	}
	if f.stopped {
		return
	}
	reset := records.Batch{Reset: true, Revision: c.state.revision}
	for kv := range c.state.Range(f.prefix) {
		reset.Events = append(reset.Events, records.Event{KV: kv})
	}
	w := &watch{client: f.client, member: k.member, prefix: f.prefix, requireLeader: true, take: f.take}
	w.fail = func(error) {
		if f.watch == w {
			f.client.move(w.member)
			f.again()
		}
	}
	f.watch = w
	c.watches.add(w)
	c.send(w, reset, 0)
}

// take hands over what the watch has heard.
func (f *follow) take(batch records.Batch) {
	if !batch.Reset && batch.Revision <= f.position {
		return
	}
	f.position = batch.Revision
	f.client.hand(func() {
		if !f.stopped {
			f.deliver(batch)
		}
	})
}

// probeLater sets the next look of each client at its follows. It rides on commits:
// without any there is nothing to miss.
func (c *Cluster) probeLater() {
	now := c.timeline.Now()
	for _, client := range c.clients {
		if client.probing || len(client.follows) == 0 {
			continue
		}
		client.probing = true
		c.timeline.After(probeInterval-now%probeInterval, client.probe)
	}
}

// probe moves the position of the follows that hear, and begins those again that
// turn out to be silent.
func (c *Client) probe() {
	c.probing = false
	if c.closed {
		return
	}
	cluster := c.cluster
	revision := cluster.state.revision
	for _, f := range c.follows {
		w := f.watch
		switch {
		case w == nil:
		case !w.deaf:
			if f.position < revision && c.link.WatchLag == 0 {
				cluster.send(w, records.Batch{Revision: revision}, 0)
			}
		case w.position < revision:
			cluster.timeline.After(probeTimeout, func() { c.replace(f, w) })
		}
	}
}

// replace begins a follow again whose watch is still silent.
func (c *Client) replace(f *follow, w *watch) {
	if c.closed || f.stopped || f.watch != w || !w.deaf {
		return
	}
	c.move(w.member)
	f.again()
}

// Watch listens to a prefix as etcd's own watches do: from a revision on, or from
// now if that is 0, on the member that the client uses. It is not looked after: at a
// member that is cut off from the others it is silent for ever, unless it requires a
// leader. deliver is called with batches, or once with the error that ends it.
func (c *Client) Watch(prefix string, from int64, requireLeader bool, deliver func(records.Batch, error)) (stop func()) {
	w := &watch{client: c, member: c.member, prefix: prefix, requireLeader: requireLeader, deaf: true}
	w.take = func(batch records.Batch) { c.hand(func() { deliver(batch, nil) }) }
	w.fail = func(err error) { c.hand(func() { deliver(records.Batch{}, err) }) }
	cluster := c.cluster
	cluster.timeline.After(cluster.latency(c.link), func() {
		if w.ended || c.closed || c.link.cut[w.member] {
			return
		}
		w.position = from - 1
		if from == 0 {
			w.position = cluster.state.revision
			if s := &cluster.members[w.member]; s.unserving {
				w.position = s.applied
			}
		}
		cluster.watches.add(w)
		if requireLeader && cluster.members[w.member].leaderless {
			cluster.end(w, ErrNoLeader)
			return
		}
		cluster.refresh()
	})
	return func() { cluster.forget(w) }
}
