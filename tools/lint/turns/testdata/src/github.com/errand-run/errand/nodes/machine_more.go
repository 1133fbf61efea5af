package nodes

func (m *machine) more() {
	go m.more() // want "no goroutine in a turn"
}
