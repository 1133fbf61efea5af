package simulate

import _ "github.com/errand-run/errand/simulation"
