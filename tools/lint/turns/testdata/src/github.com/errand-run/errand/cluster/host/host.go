package host

func run() { go run() }
