package images_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/errand-run/errand/nodes/sandbox/containerd/images"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images/authfile"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images/registry"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images/registrytest"
)

func TestCredentials(t *testing.T) {
	const user, password = "ann", "correct-horse"
	write := func(t *testing.T, format string, host string) string {
		path := filepath.Join(t.TempDir(), "config.json")
		auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
		if err := os.WriteFile(path, []byte(fmt.Sprintf(format, host, auth)), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, bearer := range []bool{false, true} {
		for _, c := range []struct {
			name, file string
			given      *authfile.Credential
			words      string
		}{
			{name: "base64 of the file", file: `{"auths":{"%s":{"auth":"%s"}}}`},
			{name: "of a URL in the file", file: `{"auths":{"https://%s/v1/":{"auth":"%s"}}}`},
			{name: "given with the pull", given: &authfile.Credential{Username: user, Password: password}},
			{name: "none", words: "no credential for it is configured"},
			{name: "wrong", given: &authfile.Credential{Username: user, Password: "hunter2"}, words: "does not accept the credential"},
			{name: "of another registry", file: `{"auths":{"other.%s":{"auth":"%s"}}}`, words: "no credential for it is configured"},
			{name: "file that is damaged", file: `{"auths":%s%s`, words: "it is not the JSON of a docker config file"},
		} {
			t.Run(fmt.Sprintf("bearer=%t %s", bearer, c.name), func(t *testing.T) {
				r := newRegistry(t, false)
				r.Username, r.Password, r.Bearer = user, password, bearer
				name, _ := served(t, r, "a", 1000)
				config := images.Config{}
				if c.file != "" {
					config.Registry.AuthFile = write(t, c.file, r.Host)
				}
				store, _ := fresh(t, config)
				_, err := store.Pull(shortly(t), images.PullRequest{Name: name, Credential: c.given}, nil)
				if c.words == "" {
					if err != nil {
						t.Fatal(err)
					}
					return
				}
				start := wantStartError(t, err, notNow, false, c.words)
				for _, secret := range []string{password, "hunter2", "let-me-in"} {
					if strings.Contains(start.Message, secret) {
						t.Errorf("the message has the secret: %s", start.Message)
					}
				}
			})
		}
	}
	t.Run("file that is gone", func(t *testing.T) {
		r := newRegistry(t, false)
		name, _ := served(t, r, "a", 1000)
		store, _ := fresh(t, images.Config{Registry: registry.Config{AuthFile: "/nowhere/config.json"}})
		wantStartError(t, pull(t, store, name), notNow, false, "read the file of credentials")
		if len(r.Requests()) != 0 {
			t.Error("the registry was asked without the credential")
		}
	})
	t.Run("that the registry repeats", func(t *testing.T) {
		r := newRegistry(t, false)
		name, _ := served(t, r, "a", 1000)
		r.Misbehave(func(*http.Request) *registrytest.Fault {
			return &registrytest.Fault{Status: 500, Body: `{"errors":[{"code":"E","message":"bad password correct-horse"}]}`}
		})
		store, _ := fresh(t, images.Config{})
		_, err := store.Pull(shortly(t), images.PullRequest{Name: name, Credential: &authfile.Credential{Username: user, Password: password}}, nil)
		wantStartError(t, err, notNow, false, "bad password ***")
	})
}

func TestEncryption(t *testing.T) {
	t.Run("a registry elsewhere that sends to what is not encrypted", func(t *testing.T) {
		r := newRegistry(t, false)
		name, image := served(t, r, "a", 1000)
		r.Misbehave(onBlob(image, func() *registrytest.Fault {
			return &registrytest.Fault{Status: 307, Header: http.Header{"Location": {"http://registry.example/blob"}}}
		}))
		store, _ := fresh(t, images.Config{})
		wantStartError(t, pull(t, store, name), notNow, false, "http://registry.example, which is not encrypted")
	})
}
