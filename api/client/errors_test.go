package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/api/codes"
	"github.com/errand-run/errand/api/fakeapi"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

func TestErrorHasTheCodeTheClassAndTheFields(t *testing.T) {
	s := startFake(t, func(s *fakeapi.Server) { s.Token = "hunter2hunter2" })
	c := newClient(t, client.Config{Address: s.URL(), Token: "hunter2hunter2"})
	ctx := within(t, 2*time.Minute)
	_, err := c.Submit(ctx, &errandv1.CreateRunRequest{Name: "a/b"})
	var failed *client.Error
	if !errors.As(err, &failed) || failed.Code != codes.InvalidField || failed.Class != connect.CodeInvalidArgument ||
		len(failed.Fields) != 2 || !strings.HasPrefix(err.Error(), "submit run: name: has") {
		t.Errorf("%#v", err)
	}
	if _, err = c.Get(ctx, "r.none"); client.CodeOf(err) != "NOT_FOUND" || !strings.HasPrefix(err.Error(), "get run r.none: ") {
		t.Errorf("an error without a detail: %v", err)
	}
	if client.CodeOf(nil) != "" || client.CodeOf(errors.New("x")) != "" {
		t.Error("a code of what is no error of the client")
	}
	wrong := newClient(t, client.Config{Address: s.URL(), Token: "wrongwrongwrong"})
	if _, err = wrong.Get(ctx, "r.none"); client.CodeOf(err) != codes.Unauthenticated || strings.Contains(err.Error(), "wrongwrong") {
		t.Errorf("a wrong token: %v", err)
	}
}

func TestErrorTellsAnUnreachableNodeFromWhatIsNone(t *testing.T) {
	ctx := within(t, 2*time.Minute)
	s := startFake(t, nil)
	c := newClient(t, client.Config{Address: s.URL()})
	s.Stop()
	_, err := c.Once().Get(ctx, "r.x")
	if client.CodeOf(err) != codes.Unreachable || !strings.Contains(err.Error(), "no node answers at "+s.URL()+": connection refused") {
		t.Errorf("nobody listens: %v", err)
	}
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	if _, err = newClient(t, client.Config{Address: web.URL}).Get(ctx, "r.x"); client.CodeOf(err) != codes.NotANode {
		t.Errorf("a web server: %v", err)
	}
}

func TestContextEndsACallWithItsErrorAndItsCause(t *testing.T) {
	s := startFake(t, nil)
	s.Add(&errandv1.Run{Id: "r.a.x", Status: errandv1.Status_STATUS_RUNNING})
	c := newClient(t, client.Config{Address: s.URL()})
	left := errors.New("left")
	for name, do := range map[string]func(context.Context) error{
		"Once":   func(ctx context.Context) error { _, err := c.Once().Get(ctx, "r.a.x"); return err },
		"Get":    func(ctx context.Context) error { _, err := c.Get(ctx, "r.a.x"); return err },
		"Submit": func(ctx context.Context) error { _, err := c.Submit(ctx, submission()); return err },
		"Wait":   func(ctx context.Context) error { _, err := c.Wait(ctx, "r.a.x"); return err },
		"Watch":  func(ctx context.Context) error { return lastError(c.Watch(ctx, "r.a.x")) },
		"Logs": func(ctx context.Context) error {
			return lastError(c.Logs(ctx, &errandv1.LogsRequest{Id: "r.a.x", Follow: true}))
		},
		"All": func(ctx context.Context) error { return lastError(c.All(ctx, nil)) },
	} {
		over, cancel := context.WithCancelCause(t.Context())
		cancel(left)
		if err := do(over); !errors.Is(err, context.Canceled) || !errors.Is(err, left) || client.CodeOf(err) != "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, do := range map[string]func(context.Context) error{
		"Wait":  func(ctx context.Context) error { _, err := c.Wait(ctx, "r.a.x"); return err },
		"Watch": func(ctx context.Context) error { return lastError(c.Watch(ctx, "r.a.x")) },
		"Logs": func(ctx context.Context) error {
			return lastError(c.Logs(ctx, &errandv1.LogsRequest{Id: "r.a.x", Follow: true}))
		},
	} {
		if err := do(within(t, 30*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s under way: %v", name, err)
		}
	}
}

func lastError[T any](all func(func(T, error) bool)) (last error) {
	for _, err := range all {
		last = err
	}
	return last
}

func TestTokenIsNeverShown(t *testing.T) {
	const secret = "hunter2hunter2"
	config := client.Config{Address: "127.0.0.1:1", Token: secret, Patience: quick}
	c := newClient(t, config)
	_, err := c.Once().Get(t.Context(), "r.x")
	asJSON, jsonErr := json.Marshal(struct{ Token client.Token }{config.Token})
	if jsonErr != nil {
		t.Fatal(jsonErr)
	}
	texts := []string{string(asJSON), err.Error(), fmt.Sprintf("%#v", err)}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		texts = append(texts, fmt.Sprintf(format, config), fmt.Sprintf(format, c), fmt.Sprintf(format, *c), fmt.Sprintf(format, config.Token))
	}
	if i := slices.IndexFunc(texts, func(text string) bool { return strings.Contains(text, secret) }); i >= 0 {
		t.Errorf("shown: %s", texts[i])
	}
	for _, bad := range []client.Token{"a b", "a\nb", "ä"} {
		if _, err := client.New(client.Config{Token: bad}); !errors.Is(err, client.ErrToken) || strings.Contains(err.Error(), string(bad)) {
			t.Errorf("a token that no header can carry: %v", err)
		}
	}
}

func TestAddressThatIsNoneIsRefusedAndNotRepeated(t *testing.T) {
	for _, bad := range []string{"http://", "ftp://a", "http://ann:hunter2@a", "http://a?b", "http://a#b", "http://a b", ":", "http://[::1", "a:0", "a:65536", "127.0.0.1:99999", "http://a:99999", "http://a:-1", "a:b"} {
		if _, err := client.New(client.Config{Address: bad}); !errors.Is(err, client.ErrAddress) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestRequestThatCanNotBeEncodedFailsAtOnce(t *testing.T) {
	s := startFake(t, nil)
	c := newClient(t, client.Config{Address: s.URL(), Retrying: func(r client.Retry) { t.Errorf("tried again after %v", r.Err) }})
	_, err := c.Submit(within(t, 2*time.Minute), &errandv1.CreateRunRequest{Name: "\xff", Spec: &errandv1.RunSpec{Image: "busybox"}})
	if client.CodeOf(err) != codes.InvalidField || !strings.Contains(err.Error(), "the request can not be sent: ") {
		t.Errorf("%v", err)
	}
}
