package records

import "fmt"

// SizeText is a number of bytes for people: "64 MiB", or "63.9 MiB" where it is not
// whole. It is rounded down, so that what is below a limit does not read like it.
func SizeText(bytes int64) string {
	unit, name := int64(1), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if bytes/unit < 1024 {
			break
		}
		unit, name = unit<<10, next
	}
	if bytes%unit == 0 {
		return fmt.Sprintf("%d %s", bytes/unit, name)
	}
	return fmt.Sprintf("%d.%d %s", bytes/unit, bytes%unit*10/unit, name)
}
