package process

import (
	_ "github.com/errand-run/errand/nodes/sandbox"
	_ "github.com/errand-run/errand/nodes/sandbox/null" // want "nodes/sandbox/null is an adapter that only boot wires"
)
