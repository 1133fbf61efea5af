package cli

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/errand-run/errand/api/fakeapi"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

func TestImagePull(t *testing.T) {
	image := &errandv1.Image{Name: "r.example/a:1", Digest: "sha256:feed", SizeBytes: 7}
	progress := &errandv1.ImagePull{Phase: errandv1.PullPhase_PULL_PHASE_FETCHING, Bytes: 1 << 20, TotalBytes: 3 << 20, BytesPerSecond: 1 << 19, Layers: 2, LayersDone: 1}
	config := filepath.Join(t.TempDir(), "config.json")
	auth := base64.StdEncoding.EncodeToString([]byte("ann:correct-horse"))
	other := base64.StdEncoding.EncodeToString([]byte("bob:other-secret"))
	if err := os.WriteFile(config, []byte(`{"auths":{"r.example":{"auth":"`+auth+`"},"else.example":{"auth":"`+other+`"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startFake(t, nil)
	s.PullAnswers = []*errandv1.PullImageResponse{{Progress: progress}, {Progress: progress}, {Image: image}}
	newInvocation(t, s.URL()).run("image", "pull", "r.example/a:1").want(t, 0, "r.example/a:1 sha256:feed\n", "fetched 1.0 MiB of 3.0 MiB, 512.0 KiB/s, 1 of 2 layers\n")
	got := newInvocation(t, s.URL()).run("image", "pull", "-o", "json", "--auth-file", config, "r.example/a:1")
	if got.code != 0 || !strings.Contains(got.stdout, `"digest": "sha256:feed"`) || got.stderr != "" {
		t.Errorf("got %+v", got)
	}
	requests := s.PullRequests()
	if len(requests) != 2 || requests[0].GetCredential() != nil || requests[1].GetCredential().GetUsername() != "ann" || requests[1].GetCredential().GetPassword() != "correct-horse" {
		t.Errorf("sent %d requests, not the credential of this registry alone", len(requests))
	}
	got = newInvocation(t, s.URL()).run("image", "pull", "--auth-file", config, "third.example/a:1")
	if got.code != ExitUsage || !strings.Contains(got.stderr, "no credential for registry third.example") || strings.Contains(got.stderr, "secret") {
		t.Errorf("got %+v", got)
	}
	s.PullAnswers, s.PullError = nil, fakeapi.Fail(connect.CodeUnavailable, "IMAGE_PULL", "registry r.example answers 503")
	got = newInvocation(t, s.URL()).run("image", "pull", "r.example/a:1")
	if got.code != ExitErrand || !strings.Contains(got.stderr, "answers 503") {
		t.Errorf("got %+v", got)
	}
	if n := len(s.PullRequests()); n != 3 {
		t.Errorf("%d pulls were asked for, not 3: a failed one is not repeated", n)
	}
}

func TestImageRemove(t *testing.T) {
	s := startFake(t, nil)
	s.Images = []*errandv1.Image{{Name: "a"}}
	newInvocation(t, s.URL()).run("image", "rm", "a").want(t, 0, "a\n", "")
	if got := newInvocation(t, s.URL()).run("image", "rm", "a"); got.code != ExitErrand || !strings.Contains(got.stderr, "there is no image a") {
		t.Errorf("got %+v", got)
	}
	if got := newInvocation(t, s.URL()).run("image", "rm"); got.code != ExitUsage {
		t.Errorf("got %+v", got)
	}
}

func TestProgressOfAPullOnATerminalIsOneLine(t *testing.T) {
	var out bytes.Buffer
	p := &pullProgress{to: &out, terminal: true, now: time.Now}
	p.show(&errandv1.ImagePull{Phase: errandv1.PullPhase_PULL_PHASE_RESOLVING})
	p.show(&errandv1.ImagePull{Phase: errandv1.PullPhase_PULL_PHASE_UNPACKING, TotalBytes: 1})
	p.end()
	if got := out.String(); strings.Contains(got, "\n") || !strings.HasPrefix(got, "\rasking the registry\runpacking 1 B      ") || !strings.HasSuffix(got, "\r") {
		t.Errorf("got %q", got)
	}
}

func TestAnImageNameThatIsNoneIsCalledByWhatWasTyped(t *testing.T) {
	s := startFake(t, func(s *fakeapi.Server) {
		s.PullError = fakeapi.Fail(connect.CodeInvalidArgument, "INVALID_FIELD", "x", &errandv1.FieldViolation{Field: "name", Text: `"UP" is not an image name`})
	})
	newInvocation(t, s.URL()).run("image", "pull", "UP").wantError(t, ExitUsage, `errand: IMAGE: "UP" is not an image name`)
}
