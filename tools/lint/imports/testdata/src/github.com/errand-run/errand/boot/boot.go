package boot

import (
	_ "go.uber.org/fx"

	_ "github.com/errand-run/errand/nodes/journal"
	_ "github.com/errand-run/errand/nodes/sandbox/null"
)
