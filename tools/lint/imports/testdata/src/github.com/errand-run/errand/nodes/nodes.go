package nodes

import (
	_ "os"

	_ "github.com/containerd/containerd/v2/client" // want "use sandbox.Driver"
	_ "github.com/errand-run/errand/actors/shell"
	_ "github.com/errand-run/errand/nodes/journal" // want "nodes/journal is an adapter that only boot wires"
	_ "github.com/errand-run/errand/nodes/sandbox"
	_ "go.uber.org/fx" // want "may be imported only in boot, cmd, examples"
)
