package main

import (
	"fmt"
	"net"
	"strings"
)

// What a service manager is told, in the words of sd_notify(3).
const (
	notifyReady    = "READY=1"
	notifyStopping = "STOPPING=1"
)

// notify tells the service manager that started the daemon how far it is. Without one
// that asked to be told (NOTIFY_SOCKET) it does nothing.
func notify(environment []string, state string) error {
	for _, variable := range environment {
		address, found := strings.CutPrefix(variable, "NOTIFY_SOCKET=")
		if !found || address == "" {
			continue
		}
		connection, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: address, Net: "unixgram"})
		if err != nil {
			return fmt.Errorf("tell the service manager %s: %w", state, err)
		}
		defer func() { _ = connection.Close() }() // nothing is left to send
		if _, err := connection.Write([]byte(state)); err != nil {
			return fmt.Errorf("tell the service manager %s: %w", state, err)
		}
	}
	return nil
}
