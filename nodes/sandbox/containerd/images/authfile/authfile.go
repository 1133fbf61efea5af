// Package authfile reads the credentials of one registry out of a docker config file
// (config.json, or podman's auth.json): what "docker login" writes. Only what lies in
// the file itself is read; a credential helper, which would be a program to run, is
// named in an error instead. No error repeats what the file holds.
package authfile

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// BytesMax bounds a file.
const BytesMax = 1 << 20

// dockerHub is the registry of names without one, and hubKeys are what docker writes
// for it.
const dockerHub = "docker.io"

var hubKeys = []string{"docker.io", "index.docker.io", "registry-1.docker.io"}

// Credential is a secret for one registry: a name and a password, or a token.
type Credential struct {
	Username, Password string
	// IdentityToken stands for both.
	IdentityToken string
}

// String keeps a credential out of what is printed.
func (Credential) String() string { return "[credential]" }

// GoString keeps a credential out of what is printed.
func (Credential) GoString() string { return "[credential]" }

// Secrets are the texts that nobody may see.
func (c Credential) Secrets() []string {
	var secrets []string
	for _, secret := range []string{c.Password, c.IdentityToken} {
		if secret != "" {
			secrets = append(secrets, secret)
		}
	}
	if c.Password != "" {
		secrets = append(secrets, base64.StdEncoding.EncodeToString([]byte(c.Username+":"+c.Password)))
	}
	return secrets
}

type file struct {
	Auths map[string]struct {
		Auth          string `json:"auth"`
		Username      string `json:"username"`
		Password      string `json:"password"`
		IdentityToken string `json:"identitytoken"`
	} `json:"auths"`
	CredsStore  string            `json:"credsStore"`
	CredHelpers map[string]string `json:"credHelpers"`
}

// Find returns the credential of a registry, as in docker.io or localhost:5000; ok is
// false when the file has none.
func Find(data []byte, registry string) (credential Credential, ok bool, err error) {
	if len(data) > BytesMax {
		return Credential{}, false, fmt.Errorf("it has more than %d bytes", BytesMax)
	}
	var parsed file
	if err := json.Unmarshal(data, &parsed); err != nil {
		return Credential{}, false, errors.New("it is not the JSON of a docker config file")
	}
	for _, key := range keysOf(registry) {
		for name, entry := range parsed.Auths { //errand:unordered two spellings of one registry are one registry
			if hostOf(name) != key {
				continue
			}
			found := Credential{Username: entry.Username, Password: entry.Password, IdentityToken: entry.IdentityToken}
			if entry.Auth != "" {
				if found.Username, found.Password, ok = decode(entry.Auth); !ok {
					return Credential{}, false, fmt.Errorf("its auth of %s is not the base64 of user:password", registry)
				}
			}
			if found.IdentityToken != "" {
				return Credential{IdentityToken: found.IdentityToken}, true, nil
			}
			if found.Username != "" && found.Password != "" {
				return found, true, nil
			}
		}
		for name, helper := range parsed.CredHelpers { //errand:unordered only whether there is one matters
			if hostOf(name) == key && helper != "" {
				return Credential{}, false, fmt.Errorf("it leaves %s to a credential helper, which is not run: put the credential into the file", registry)
			}
		}
	}
	if _, listed := parsed.Auths[registry]; listed && parsed.CredsStore != "" {
		return Credential{}, false, fmt.Errorf("it leaves %s to a credential store, which is not asked: put the credential into the file", registry)
	}
	return Credential{}, false, nil
}

func keysOf(registry string) []string {
	if registry == dockerHub {
		return hubKeys
	}
	return []string{registry}
}

// hostOf takes scheme and path off a key, as in https://index.docker.io/v1/.
func hostOf(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	host, _, _ := strings.Cut(key, "/")
	return host
}

func decode(auth string) (username, password string, ok bool) {
	plain, err := base64.StdEncoding.DecodeString(auth)
	if err != nil {
		return "", "", false
	}
	username, password, ok = strings.Cut(string(plain), ":")
	return username, strings.TrimRight(password, "\x00"), ok
}
