package nodes

import "time"

type Node struct{ started time.Time }

func (n *Node) run() {
	n.started = time.Now()
	go n.run()
}
