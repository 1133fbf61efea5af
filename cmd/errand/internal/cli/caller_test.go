package cli

import (
	"errors"
	"io"
	"os/user"
	"strings"
	"testing"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

func TestCallerIsNamedByUserAndMachine(t *testing.T) {
	cases := []struct {
		name    string
		environ []string
		account string
		host    string
		want    string
	}{
		{"both", []string{"USER=ann", "LOGNAME=root"}, "root", "build-7", "ann@build-7"},
		{"only the login name", []string{"LOGNAME=ann"}, "root", "build-7", "ann@build-7"},
		{"only the account", nil, "root", "build-7", "root@build-7"},
		{"no user", nil, "", "build-7", "build-7"},
		{"no machine", []string{"USER=ann"}, "", "", "ann"},
		{"neither", nil, "", "", ""},
		{"control characters and what is not UTF-8", []string{"USER=a\x1b[31m\xffn"}, "", "h\n", "a?[31m\ufffdn@h?"},
		{"longer than the API takes", []string{"USER=" + strings.Repeat("ä", 200)}, "", "h", strings.Repeat("ä", 128)},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			a := newApp(strings.NewReader(""), io.Discard, io.Discard, c.environ)
			a.hostname = func() (string, error) {
				if c.host == "" {
					return "", errors.New("it has none")
				}
				return c.host, nil
			}
			a.account = func() (*user.User, error) {
				if c.account == "" {
					return nil, user.UnknownUserIdError(7)
				}
				return &user.User{Username: c.account}, nil
			}
			if got := a.caller(); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestCancelSaysWhoAsks(t *testing.T) {
	s := startFake(t, nil)
	live := s.Add(&errandv1.Run{Id: "r.a.going", Status: errandv1.Status_STATUS_RUNNING})
	i := newInvocation(t, s.URL())
	i.environ = append(i.environ, "USER=ann")
	i.run("cancel", "r.a.going").want(t, 0, "r.a.going\n", "")
	if got := live.CanceledBy(); !strings.HasPrefix(got, "ann") {
		t.Errorf("canceled by %q", got)
	}
}
