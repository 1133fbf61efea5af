package activation

import actorv1 "github.com/errand-run/errand/messages/errand/actor/v1"

// Transport carries packets between the directories of nodes.
type Transport interface {
	// Send passes a packet on to a node. It does not block, may be called from any
	// goroutine, and may lose, double and reorder packets; the packet must not be
	// changed afterwards. The other side hands it to Directory.Receive.
	Send(node string, packet *actorv1.Packet)
}
