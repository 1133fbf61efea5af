package run

import (
	_ "fmt"
	_ "github.com/asynkron/protoactor-go/actor" // want "may be imported only in cluster/host, .*: write a Machine"
	_ "github.com/errand-run/errand/cluster/records"
	_ "github.com/errand-run/errand/cluster/store"
	_ "github.com/errand-run/errand/messages"
	_ "github.com/errand-run/errand/nodes"      // want "imports point down only, and nodes lies above actors"
	_ "github.com/errand-run/errand/simulation" // want "simulation lies above actors"
	_ "net/http"                                // want "is pure and may not import net/http"
	_ "os"                                      // want "is pure and may not import os"
)
