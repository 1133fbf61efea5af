package machine

import "github.com/errand-run/errand/simulation/history"

// Swap swaps the disks of two machines. Their daemons must be down.
func (d *Disk) Swap(other *Disk) {
	d.content, other.content = other.content, d.content
	d.kept, other.kept = other.kept, d.kept
	d.damaged, other.damaged = other.damaged, d.damaged
	d.machine.note(history.KindMachine, "disk swapped with that of "+other.machine.name)
}
