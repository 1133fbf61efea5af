package shell

import (
	_ "github.com/asynkron/protoactor-go/actor"
	_ "github.com/errand-run/errand/cluster/host"
)
