package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// An impostor is a peer with a flaw, as a program of its own: it takes commands over
// HTTP and carries them out like any other.

// flaws are what an impostor may do wrong.
const (
	flawNone     = "none"
	flawLoses    = "loses a command"
	flawTwice    = "runs a command twice"
	flawEarly    = "says done and does nothing"
	flawRefuses  = "refuses a command"
	flawDeaf     = "never comes up"
	flawDies     = "ends at once"
	flawQuits    = "ends in the middle"
	flawLeaves   = "leaves processes behind"
	flawStubborn = "does not end"
)

// flawedCommand is the command that it happens to: of the first batch after the warm-up.
const flawedCommand = 11

func impostorPeer(program, flaw string) peer {
	return peer{name: "impostor 1.0.0", setting: "a program of the tests", start: func(ctx context.Context, at *place) (session, error) {
		ports, err := at.ports(1)
		if err != nil {
			return nil, err
		}
		up := upMax
		switch flaw {
		case flawDeaf:
			up = time.Second
		case flawStubborn:
			at.grace = 100 * time.Millisecond
		}
		if err := at.run(program, strconv.Itoa(ports[0]), flaw); err != nil {
			return nil, err
		}
		s := &impostorSession{rest: newRest(ports[0]), ledger: at.ledger}
		if err := at.up(ctx, up, func(ctx context.Context) error {
			return s.call(ctx, http.MethodGet, "/", nil, nil, http.StatusOK)
		}); err != nil {
			s.close()
			return nil, err
		}
		return s, nil
	}}
}

type impostorSession struct {
	*rest
	ledger *ledger
}

func (s *impostorSession) prepare(context.Context, int, int) error { return nil }

type impostorCommand struct {
	Number  int
	Command string
}

func (s *impostorSession) submit(ctx context.Context, number int) error {
	return s.call(ctx, http.MethodPost, "/run", impostorCommand{number, s.ledger.line(strconv.Itoa(number))}, nil, http.StatusOK)
}

// impostorMain is the program: PORT FLAW.
func impostorMain(args []string) int {
	port, flaw := args[0], args[1]
	fmt.Fprintln(os.Stderr, "impostor: it", flaw)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	switch flaw {
	case flawDies:
		return 3
	case flawDeaf:
		<-stop
		return 0
	case flawLeaves:
		// Twice forked, in a session of its own, with nothing of ours in its environment.
		orphan := exec.Command("/bin/sh", "-c", "sleep 3600 & exit 0")
		orphan.Env, orphan.Dir, orphan.SysProcAttr = []string{}, "/", &syscall.SysProcAttr{Setsid: true}
		if err := orphan.Run(); err != nil {
			return 4
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		return 5
	}
	var commands sync.WaitGroup
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /run", func(w http.ResponseWriter, r *http.Request) {
		var c impostorCommand
		if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		times := 1
		if c.Number == flawedCommand || flaw == flawEarly {
			switch flaw {
			case flawLoses, flawEarly:
				times = 0
			case flawTwice:
				times = 2
			case flawRefuses:
				http.Error(w, "no room", http.StatusServiceUnavailable)
				return
			case flawQuits:
				os.Exit(6)
			}
		}
		for range times {
			commands.Go(func() {
				if output, err := exec.Command("/bin/sh", "-c", c.Command).CombinedOutput(); err != nil {
					fmt.Fprintln(os.Stderr, err, string(output))
				}
			})
		}
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go server.Serve(listener) //nolint:errcheck // it ends with the program
	for range stop {
		if flaw != flawStubborn {
			break
		}
	}
	commands.Wait()
	return 0
}
