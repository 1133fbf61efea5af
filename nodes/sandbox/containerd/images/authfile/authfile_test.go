package authfile

import (
	"fmt"
	"strings"
	"testing"
)

func TestFind(t *testing.T) {
	for _, c := range []struct {
		name, data, registry string
		want                 Credential
		words                string
	}{
		{name: "base64", data: `{"auths":{"r.example":{"auth":"YW5uOmh1bnRlcjI6eA=="}}}`, registry: "r.example", want: Credential{Username: "ann", Password: "hunter2:x"}},
		{name: "plain", data: `{"auths":{"r.example":{"username":"ann","password":"hunter2"}}}`, registry: "r.example", want: Credential{Username: "ann", Password: "hunter2"}},
		{name: "token", data: `{"auths":{"r.example":{"auth":"YW5uOg==","identitytoken":"hunter2"}}}`, registry: "r.example", want: Credential{IdentityToken: "hunter2"}},
		{name: "docker.io as docker writes it", data: `{"auths":{"https://index.docker.io/v1/":{"auth":"YW5uOmh1bnRlcjI="}}}`, registry: "docker.io", want: Credential{Username: "ann", Password: "hunter2"}},
		{name: "another port", data: `{"auths":{"r.example:5000":{"auth":"YW5uOmh1bnRlcjI="}}}`, registry: "r.example"},
		{name: "a longer name", data: `{"auths":{"r.example.evil":{"auth":"YW5uOmh1bnRlcjI="}}}`, registry: "r.example"},
		{name: "nothing", data: `{}`, registry: "r.example"},
		{name: "an empty entry", data: `{"auths":{"r.example":{}}}`, registry: "r.example"},
		{name: "no base64", data: `{"auths":{"r.example":{"auth":"hunter2!"}}}`, registry: "r.example", words: "not the base64"},
		{name: "no JSON", data: `hunter2`, registry: "r.example", words: "not the JSON"},
		{name: "a helper", data: `{"credHelpers":{"r.example":"hunter2"}}`, registry: "r.example", words: "credential helper"},
		{name: "a store", data: `{"auths":{"r.example":{}},"credsStore":"hunter2"}`, registry: "r.example", words: "credential store"},
		{name: "a huge file", data: strings.Repeat(" ", BytesMax+1), registry: "r.example", words: "more than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ok, err := Find([]byte(c.data), c.registry)
			if c.words != "" {
				if err == nil || !strings.Contains(err.Error(), c.words) || strings.Contains(err.Error(), "hunter2") {
					t.Errorf("got %v, want %q", err, c.words)
				}
				return
			}
			if err != nil || got != c.want || ok != (c.want != Credential{}) {
				t.Errorf("got %q %q %q, %t, %v", got.Username, got.Password, got.IdentityToken, ok, err)
			}
		})
	}
}

func TestACredentialIsNotPrinted(t *testing.T) {
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		if got := fmt.Sprintf(verb, Credential{Username: "ann", Password: "hunter2"}); got != "[credential]" {
			t.Errorf("%s prints %s", verb, got)
		}
	}
}

func FuzzFind(f *testing.F) {
	f.Add(`{"auths":{"r.example":{"auth":"YW5uOmh1bnRlcjI="}}}`)
	f.Fuzz(func(_ *testing.T, data string) { _, _, _ = Find([]byte(data), "r.example") })
}
