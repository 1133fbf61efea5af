package journal

import _ "go.etcd.io/bbolt"
