package main

func runSupervise(args []string) int { return exitSetup }
