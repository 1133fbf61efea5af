package nodes

import "time"

type machine struct{}

func (m *machine) Step(now time.Time, in any) []any {
	_ = time.Now() // want "no time.Now in a turn"
	return nil
}
