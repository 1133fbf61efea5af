package host

import (
	_ "sync"

	_ "github.com/asynkron/protoactor-go/actor"
	_ "go.etcd.io/etcd/client/v3" // want "may be imported only in cluster/store: use the Store port"
)
