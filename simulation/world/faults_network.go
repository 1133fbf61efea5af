package world

import (
	"fmt"
	"slices"
	"strings"

	actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"
	"github.com/errand-run/errand/simulation/network"
	"github.com/errand-run/errand/simulation/plan"
	"github.com/errand-run/errand/simulation/virtual"
)

// messagePackage comes before the names of the actors' messages.
const messagePackage = "errand.actor.v1."

// applyNetwork applies the faults of the network and of the views.
func (w *World) applyNetwork(a *active) (end func()) {
	switch f := a.What.(type) {
	case plan.Cut, plan.Noise, plan.Hold, plan.DoubledTell:
		w.refreshLinks()
		return w.refreshLinks
	case plan.Selected:
		return w.Network.Script(func(_, _ string, deliver *actorv1.Deliver) (network.Fate, bool) {
			_, name, _ := strings.Cut(deliver.GetType(), messagePackage)
			return network.Fate{Drop: f.Hold == 0, HoldFor: f.Hold.D()}, name == f.Message
		})
	case plan.View:
		view := w.Members.Of(f.Node)
		for _, name := range w.plan.Options.NodeNames() {
			view.Force(name, slices.Contains(f.Alive, name))
		}
		return func() { view.Follow() }
	case plan.Flap:
		every := virtual.Span{Min: f.Period.D() / 2, Max: f.Period.D() * 2}
		for _, s := range w.sorted {
			if s.name != f.Node {
				w.Members.Of(s.name).Flap(f.Node, every)
			}
		}
		return func() {
			for _, s := range w.sorted {
				w.Members.Of(s.name).Follow()
			}
		}
	default:
		panic(fmt.Sprintf("world: nobody applies %s", a.What.Kind()))
	}
}

// refreshLinks derives how every link is from the faults under way.
func (w *World) refreshLinks() {
	latency := w.plan.Options.Latency.Network.D()
	w.Network.Each(func(from, to string, link *network.Link) {
		link.Delay = virtual.Span{Min: latency / 2, Max: 2 * latency}
		link.Drop, link.Double, link.Reorder, link.Hold, link.HoldFor, link.Cut = 0, 0, 0, 0, virtual.Span{}, false
		for _, a := range w.faults.active {
			alterLink(from, to, link, a)
		}
	})
	w.Members.Update()
}

// alterLink adds a fault to how a link is.
func alterLink(from, to string, link *network.Link, a *active) {
	matches := func(name, pattern string) bool { return pattern == "" || name == pattern }
	switch f := a.What.(type) {
	case plan.Cut:
		link.Cut = link.Cut || slices.Contains(f.From, from) && slices.Contains(f.To, to) ||
			f.Both && slices.Contains(f.From, to) && slices.Contains(f.To, from)
	case plan.Noise:
		if matches(from, f.From) && matches(to, f.To) {
			link.Drop, link.Double, link.Reorder = max(link.Drop, f.Drop), max(link.Double, f.Duplicate), 0.5
			link.Delay.Max += f.Delay.D()
		}
	case plan.Hold:
		if from == f.From && to == f.To {
			link.Hold, link.HoldFor = 1, virtual.Span{Min: (a.End - a.Begin).D(), Max: (a.End - a.Begin).D()}
		}
	case plan.DoubledTell:
		link.Double, link.Hold, link.HoldFor = 1, 0.5, virtual.Span{Max: f.Delay.D()}
	}
}
