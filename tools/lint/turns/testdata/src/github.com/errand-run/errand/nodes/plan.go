package nodes

//errand:machine

func plan() {
	go plan() // want "no goroutine in a turn"
}
