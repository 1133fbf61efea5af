package boot

import "runtime/debug"

// versionNone is the version of a build that was told none.
const versionNone = "dev"

// Version is the version of this build; make sets it.
var Version = versionNone

const modulePath = "github.com/errand-run/errand"

// version is that of this build, or that of the module in the program that includes it.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && Version == versionNone {
		for _, module := range info.Deps {
			if module.Path == modulePath && module.Replace == nil {
				return module.Version
			}
		}
	}
	return Version
}
