package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"time"
)

// peer is a program that runs commands. What it does is counted by the ledger of its
// place: an adapter starts it, hands commands over and nothing else, so that a wrong one
// gives an error and no figure.
type peer struct {
	// name is what it is called in the table, with its version.
	name string
	// setting says in what way it runs a command.
	setting string
	// start has it run in the place and returns when it takes commands. It listens on
	// loopback only, and all of its files are in the place's folder.
	start func(context.Context, *place) (session, error)
}

// session hands commands over to a peer that runs. Its methods may be called by any
// goroutine.
type session interface {
	// prepare tells of commands that will be submitted; its time is not measured.
	prepare(ctx context.Context, first, count int) error
	// submit hands a command over and returns when the peer has taken it.
	submit(ctx context.Context, number int) error
	// close ends its connections.
	close()
}

const (
	// versionMax is how long a program may take to say its version.
	versionMax = 10 * time.Second
	// callMax is how long a call of a peer's API may take.
	callMax = 30 * time.Second
	// answerMax is how much of an answer is read, answerShown how much of a wrong one is shown,
	// in bytes.
	answerMax   = 8 << 20
	answerShown = 200
)

var versionForm = regexp.MustCompile(`[0-9]+\.[0-9]+\.[0-9]+[0-9A-Za-z.+-]*`)

// versionOf asks a program for its version.
func versionOf(ctx context.Context, program string) string {
	ctx, cancel := context.WithTimeout(ctx, versionMax)
	defer cancel()
	command := exec.CommandContext(ctx, program, "version")
	command.Env = []string{"PATH=" + peersPath}
	command.WaitDelay = time.Second
	output, err := command.CombinedOutput()
	if found := versionForm.Find(output); err == nil && found != nil {
		return string(found)
	}
	return "of unknown version"
}

// rest calls an API of JSON over HTTP.
type rest struct {
	address string
	client  *http.Client
}

func newRest(port int) *rest {
	return &rest{
		address: fmt.Sprintf("http://127.0.0.1:%d", port),
		client:  &http.Client{Timeout: callMax, Transport: &http.Transport{MaxIdleConnsPerHost: peerSubmitters}},
	}
}

// call sends a body, if there is one, and reads the answer, if somebody wants it. Any
// status but those that are wanted is an error.
func (r *rest) call(ctx context.Context, method, path string, body, answer any, wanted ...int) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s %s: %w", method, path, err)
		}
	}()
	var text []byte
	if body != nil {
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, r.address+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	request.GetBody = nil // a command that may have been taken is not sent again
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	got, err := r.client.Do(request)
	if err != nil {
		return err
	}
	said, err := io.ReadAll(io.LimitReader(got.Body, answerMax))
	if err = errors.Join(err, got.Body.Close()); err != nil {
		return err
	}
	for _, status := range wanted {
		if got.StatusCode != status {
			continue
		}
		if answer == nil {
			return nil
		}
		if err := json.Unmarshal(said, answer); err != nil {
			return fmt.Errorf("%.*q is no answer: %w", answerShown, said, err)
		}
		return nil
	}
	return fmt.Errorf("%s: %.*q", got.Status, answerShown, said)
}

// close ends the connections that are kept.
func (r *rest) close() { r.client.CloseIdleConnections() }
