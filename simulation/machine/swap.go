package machine

import "github.com/errand-run/errand/simulation/history"

// Swap swaps the disks of two machines. Their daemons must be down.
func (d *Disk) Swap(other *Disk) {
	d.content, other.content = other.content, d.content
	d.damaged, other.damaged = other.damaged, d.damaged
	d.tail, other.tail = other.tail, d.tail
	d.cached, other.cached = other.cached, d.cached
	d.hole, other.hole = other.hole, d.hole
	d.spoiled, other.spoiled = other.spoiled, d.spoiled
	d.machine.note(history.KindMachine, "disk swapped with that of "+other.machine.name)
}
