package actors

// A message that matters is repeated until it is answered. An owner that can not be
// reached is passed over by delivery itself; one that takes every message and gets
// nowhere, because it has lost the store for example, is passed over by the repeats:
// they begin further down the ranks, where another activation does what the first
// does not. Two activations of one actor are harmless (guarantee G1).

// RepeatsPerRank is how often a message is sent to a rank before its repeats pass over
// that. It is larger than the number of repeats within the time that delivery itself
// takes to come to the next rank.
const RepeatsPerRank = 4

// PastHere passes over all ranks that are tried: the message is for the sender's node.
const PastHere = 3

// Past returns how many ranks a repeat passes over, by its number from 0. It goes down
// the ranks to the sender's node and then around, so that an owner that has recovered
// is the first again.
func Past(repeat int) int { return repeat / RepeatsPerRank % (PastHere + 1) }
