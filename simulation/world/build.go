package world

import (
	"fmt"

	"github.com/errand-run/errand/cluster/records"
	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
	"github.com/errand-run/errand/simulation/check"
	"github.com/errand-run/errand/simulation/etcd"
	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/machine"
	"github.com/errand-run/errand/simulation/members"
	"github.com/errand-run/errand/simulation/network"
	"github.com/errand-run/errand/simulation/plan"
	"github.com/errand-run/errand/simulation/virtual"
)

// build makes the store, the network and the machines, and launches the daemons.
func (w *World) build() {
	o := w.plan.Options
	names := o.NodeNames()
	steps := func() uint64 { return w.steps }

	store := etcd.DefaultOptions(o.Members)
	way := o.Latency.Store.D() / 3
	store.Latency = etcd.Within{Min: way / 2, Max: 2 * way}
	store.Commit = store.Latency
	store.Flights, store.OpsMax = o.Flights, o.OpsMax
	w.Store = etcd.New(w.timeline, w.streams.Of("store"), w.history, store)
	w.found()

	w.Network = network.New(w.timeline, w.streams.Of("network"), w.history, steps)
	w.Network.Default.Delay = virtual.Span{Min: o.Latency.Network.D() / 2, Max: 2 * o.Latency.Network.D()}
	w.Members = members.New(w.timeline, w.streams.Of("members"), names...)
	w.Members.Reaches = w.Network.Reaches
	for _, name := range names {
		w.Network.Of(name)
	}
	for _, name := range names {
		s := &seat{name: name, as: name, uuid: "uuid-of-" + name, Machine: machine.New(machine.Options{
			Name: name, Timeline: w.timeline, Random: w.streams.Of("machine/" + name), History: w.history, Step: steps,
			Drivers: []string{Driver}, Faults: w.base(),
			Drift: o.Session.Drift, KillBudget: o.Session.KillBudget.D(),
		})}
		w.seats[name] = s
		w.sorted = append(w.sorted, s)
	}
	for _, s := range w.sorted {
		w.launch(s)
	}
	w.Members.Settle()
}

// found writes what the first daemon of a cluster writes before any node comes up.
func (w *World) found() {
	w.epoch = 1
	cluster := &recordv1.Cluster{
		Epoch: w.epoch, Shards: w.keys.Shards, Hash: records.HashName, Solo: w.plan.Options.Solo, MinWriter: records.Writer, Id: "simulated",
	}
	put := w.keys.Found(cluster).Then[0]
	_, err := w.Store.Admin(&etcd.Txn{Then: []etcd.Op{{Kind: etcd.Put, Span: etcd.Span{Key: put.Key}, Value: put.Value}}})
	if err != nil {
		panic(fmt.Sprintf("world: found the cluster: %v", err))
	}
}

// connect gives a daemon its ways to the store and to the other nodes.
func (w *World) connect(d *daemon, ports *nodes.Ports) {
	client := w.Store.Client(d.machine)
	client.Deliver = d.life.Deliver
	d.store = client
	d.detach = append(d.detach, client.Close)
	ports.Store = client
	if !w.plan.Options.Solo {
		ports.Leases = client
	}
	view := w.Members.Of(d.node)
	ports.Nodes, ports.Peers = view, view
	port := w.Network.Of(d.machine)
	port.Listen(d.node, d.receive)
	ports.Transport = port
	d.detach = append(d.detach, func() { port.Listen(d.node, nil) })
}

// receive hands the daemon a packet.
func (d *daemon) receive(from string, packet *actorv1.Packet) {
	d.life.Deliver(func() { d.assembled.Receive(from, packet) })
}

// program is what a planned command does, in the words of a simulated machine.
func program(c *plan.Command) machine.Program {
	p := machine.Program{After: c.Takes.D(), Code: c.Code, IgnoreTerm: c.Deaf}
	if c.Orphan > 0 {
		p.Fork = c.Takes.D() + c.Orphan.D()
	}
	if c.Retry != nil {
		p.HealsAt = c.Retry.HealsAt
	}
	return p
}

// retryOf is what the record of a run says of the attempts after its first.
func retryOf(r *plan.Retry) *recordv1.Retry {
	if r == nil {
		return nil
	}
	retry := &recordv1.Retry{
		Retries: r.Retries, BackoffMs: r.Backoff.D().Milliseconds(), BackoffMaxMs: r.BackoffMax.D().Milliseconds(),
		JitterPercent: r.Jitter, OnNodeLoss: recordv1.OnNodeLoss_ON_NODE_LOSS_FAIL,
	}
	switch {
	case r.Waits:
		retry.OnNodeLoss = recordv1.OnNodeLoss_ON_NODE_LOSS_WAIT
	case r.OnLoss:
		retry.OnNodeLoss = recordv1.OnNodeLoss_ON_NODE_LOSS_RETRY
	}
	for _, code := range r.Never {
		if retry.Never == nil {
			retry.Never = &recordv1.Failures{}
		}
		retry.Never.Codes = append(retry.Never.Codes, &recordv1.CodeRange{First: code, Last: code})
	}
	return retry
}

// leftOn is what a machine has of runs.
func leftOn(m *machine.Machine) ([]check.Leftover, []*recordv1.JournalEntry) {
	left := m.Left()
	var things []check.Leftover
	for _, box := range left.Sandboxes {
		things = append(things, check.Leftover{What: "sandbox", Run: box.Run, Running: box.Alive})
	}
	return things, left.Entries
}

// turnEvent describes one turn.
func turnEvent(b *box, message any) history.Event {
	return history.Event{Kind: history.KindTurn, Node: b.daemon.machine, Run: runOf(b.Name()), Text: b.Name() + " takes " + messageText(message)}
}
