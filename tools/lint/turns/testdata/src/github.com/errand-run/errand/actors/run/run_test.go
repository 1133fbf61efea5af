package run

import "time"

var started = time.Now()
