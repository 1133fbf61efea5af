package store

import (
	_ "os"

	_ "go.etcd.io/bbolt"
	_ "go.etcd.io/etcd/client/v3"
)
