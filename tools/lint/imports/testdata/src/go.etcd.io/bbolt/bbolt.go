package bbolt
