package registry

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/auth"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
)

// Failure is why an image could not be pulled. Its text holds no secret.
type Failure struct {
	// NotFound means that it will not be there at another try either.
	NotFound bool
	Text     string
	// RetryAfter is how long the registry does not want to be asked again; 0 when it
	// did not say.
	RetryAfter time.Duration
}

// Error returns the text.
func (f *Failure) Error() string { return f.Text }

// Explain turns what the resolver answered into a *Failure, unless it is none of the
// registry's: then it is nil.
func (s *Session) Explain(image string, err error) *Failure {
	t := s.transport
	t.mu.Lock()
	refused, missing := t.refused, t.missing
	t.mu.Unlock()
	var failure *Failure
	var status remoteerrors.ErrUnexpectedStatus
	switch {
	case errors.As(err, &failure):
		return failure
	case errors.Is(err, docker.ErrInvalidAuthorization), errors.As(err, &status) && status.StatusCode == 401, errors.Is(err, auth.ErrNoToken):
		return &Failure{Text: s.refusal(image, refused)}
	case errors.As(err, &status):
		return &Failure{Text: fmt.Sprintf("%s answers %s", shown(s.host), s.safe(status.Status))}
	case errdefs.IsNotFound(err) && missing:
		return &Failure{NotFound: true, Text: fmt.Sprintf("registry %s has no image %s", shown(s.host), image)}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &Failure{Text: fmt.Sprintf("%s ends the connection before the content does", shown(s.host))}
	}
	return nil
}

func (s *Session) refusal(image, status string) string {
	if status == "" {
		status = "401 Unauthorized"
	}
	why := "it does not accept the credential that the node has for it"
	if !s.given {
		why = "no credential for it is configured, and the image may not exist"
	}
	return fmt.Sprintf("registry %s refuses image %s: %s (%s)", shown(s.host), image, s.safe(status), why)
}
