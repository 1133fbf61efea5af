// Package activation keeps virtual actors: addressed by kind and identity, always
// there to be told something, in memory only while they have something to do.
//
// One activator actor owns the map from addresses to live actors, so nothing here
// locks and the order of everything follows from the order of messages. The first
// message for an address spawns its actor; an actor that is idle offers to end
// (Passivate); a message that comes while it ends waits for the next activation.
// At most one activation of an address exists on a node at any time. Over a
// cluster there may be two for a while, which the store's compare-and-swap makes
// harmless (guarantee G1).
//
// In front of delivery stands the question which node an address belongs to. With a
// Transport, Options.Ranks answers it by this node's own view of the others, and a
// message goes to the directory of the first in rank, after TakenTimeout without a
// word to that of the second, and then it is delivered here: a node that others take
// for alive and that can not be reached keeps nothing from going on. A directory that
// is sent a message activates the actor, whatever its own view says, for views may
// differ for good. Pinned actors live where their identity says and nowhere else.
//
// What passes between directories are Packets. Any may be lost, doubled or overtaken:
// a Deliver that expects something back has a number, and the incarnation of its
// directory, by which answers to one that is gone are told apart. An ask takes the
// same way; its answer comes back as a Reply.
//
// A node that takes messages and gets nowhere is not noticed by any of this. Tells that
// matter are repeated by who sends them, and TellPast lets repeats begin further down
// the ranks; AskRepeatedly does so for an ask.
package activation
