package null

import _ "github.com/errand-run/errand/nodes/sandbox"
