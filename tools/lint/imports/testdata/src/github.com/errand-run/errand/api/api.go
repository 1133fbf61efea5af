package api

import (
	_ "github.com/asynkron/protoactor-go/actor" // want "may be imported only in"
	_ "github.com/errand-run/errand/boot"       // want "boot lies above api"
	_ "github.com/errand-run/errand/cluster/records"
)
