package run

import _ "os"
