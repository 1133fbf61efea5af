package node

import _ "github.com/errand-run/errand/simulation" // want "simulation lies above cmd"
