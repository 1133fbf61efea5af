package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/errand-run/errand/api/client"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// DefaultAddress is where a node on this machine answers unless it is told
// otherwise.
const DefaultAddress = client.AddressDefault

// defaultDataDir is where a node keeps its data, the API token among it.
const defaultDataDir = "/var/lib/errand"

// tokenBytesMax bounds what is read from a token file.
const tokenBytesMax = 4096

// quietDefault is how long an outage lasts before it is worth a word.
const quietDefault = 3 * time.Second

// connection is the API of one node, to be used by one command.
type connection struct {
	// patient goes on trying for a while, once tries each call once.
	patient, once *client.Client
	// tokenTrouble says why no token is sent, for when the node wants one.
	tokenTrouble string
	tokenSource  string
}

// connect prepares the clients; nothing is sent yet.
func (a *app) connect() (*connection, error) {
	if a.conn != nil {
		return a.conn, nil
	}
	c := &connection{}
	token, err := a.resolveToken(c)
	if err != nil {
		return nil, err
	}
	address, source := a.resolveAddress()
	c.patient, err = client.New(client.Config{Address: address, Token: token, Patience: a.patience, Retrying: a.outages(func() string { return c.patient.Address() })})
	switch {
	case errors.Is(err, client.ErrToken):
		return nil, usage("%s does not hold a token: it has a space or an unprintable character in it", c.tokenSource)
	case err != nil:
		// What was given is not repeated: it might hold a password.
		return nil, usage("%s is %s", source, client.ErrAddress)
	}
	c.once = c.patient.Once()
	a.conn = c
	return c, nil
}

// outages tells, once for each outage, that a node which was there does not answer.
func (a *app) outages(address func() string) func(client.Retry) {
	var told atomic.Bool
	return func(retry client.Retry) {
		switch {
		case retry.Lasted == 0:
			told.Store(false)
		case retry.Reached && retry.Lasted >= a.quiet && told.CompareAndSwap(false, true):
			a.note("%s does not answer; trying again for %s", address(), retry.Limit)
		}
	}
}

func (a *app) resolveAddress() (address, source string) {
	if a.address != "" {
		return a.address, "--address"
	}
	return a.environ["ERRAND_ADDRESS"], "ERRAND_ADDRESS"
}

// resolveToken finds the API token. Without --token-file a missing file is no
// error: a node in --dev mode wants none.
func (a *app) resolveToken(c *connection) (client.Token, error) {
	if token := strings.TrimSpace(a.environ["ERRAND_TOKEN"]); token != "" {
		c.tokenSource = "ERRAND_TOKEN"
		return client.Token(token), nil
	}
	path := a.tokenFile
	if path == "" {
		dir := a.environ["ERRAND_DATA"]
		if dir == "" {
			dir = defaultDataDir
		}
		path = filepath.Join(dir, "api.token")
	}
	c.tokenSource = path
	token, err := readToken(path)
	if err == nil {
		return token, nil
	}
	why := reasonOf(err)
	if a.tokenFile != "" {
		return "", usage("--token-file %s: %s", path, why)
	}
	c.tokenTrouble = fmt.Sprintf("%s: %s", path, why)
	return "", nil
}

func readToken(path string) (client.Token, error) {
	content, err := readFile(path, tokenBytesMax)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(content))
	if token == "" {
		return "", errors.New("the file is empty")
	}
	return client.Token(token), nil
}

// reasonOf is the cause of a file error without the operation and path.
func reasonOf(err error) string {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err.Error()
	}
	return err.Error()
}

// get returns a run, asked for once.
func (c *connection) get(ctx context.Context, id string) (*errandv1.Run, error) {
	run, err := c.once.Get(ctx, id)
	return run, c.explain(err)
}
