package cli

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/errand-run/errand/api/fakeapi"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// A script that fills a disk with what a command says has to hear of it.
func TestEveryCommandFailsWhoseOutputCanNotBeWritten(t *testing.T) {
	s := startFake(t, func(s *fakeapi.Server) {
		s.Inside = []byte("x")
		s.PullAnswers = []*errandv1.PullImageResponse{{Image: &errandv1.Image{Name: "busybox"}}}
		s.Images = []*errandv1.Image{{Name: "busybox"}}
		s.Nodes = []*errandv1.Node{{Id: "n1"}}
		s.NodeCheck = &errandv1.CheckNodeResponse{}
	})
	s.Add(&errandv1.Run{Id: "r.default.going", Status: errandv1.Status_STATUS_RUNNING})
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, line := range []string{
		"help", "--help", "help run", "run --help", "image", "version", "--version", "completion bash", "completion fish", "completion zsh", "__complete image ",
		"runs", "runs -q", "runs -o yaml", "show r", "why r", "wait --timeout 0 r", "exec r -- true", "cp r:/ -",
		"run -d busybox", "image ls", "image pull busybox", "image rm busybox", "node ls", "node show n1", "node check",
	} {
		var stderr bytes.Buffer
		code := Execute(t.Context(), strings.Fields(line), strings.NewReader(""), full, &stderr, []string{"ERRAND_ADDRESS=" + s.URL()})
		if code != ExitErrand || !strings.Contains(stderr.String(), "write to stdout: no space left on device") {
			t.Errorf("%s: exit code %d, stderr %q", line, code, stderr.String())
		}
		if runs := s.Runs(); strings.HasPrefix(line, "run -d") && !strings.Contains(stderr.String(), "Run "+runs[len(runs)-1].Run().GetId()+" was created") {
			t.Errorf("%s: the run is lost: %q", line, stderr.String())
		}
	}
}
