package cli

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/creack/pty"

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

// onTerminal is what a command writes to a terminal of so many columns.
func onTerminal(t *testing.T, columns uint16, environ []string, args ...string) string {
	t.Helper()
	master, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	if err := pty.Setsize(master, &pty.Winsize{Rows: 24, Cols: columns}); err != nil {
		t.Fatal(err)
	}
	read := make(chan string, 1)
	go func() {
		text, _ := io.ReadAll(master) // it ends with an error
		read <- string(text)
	}()
	var stderr bytes.Buffer
	if code := Execute(t.Context(), args, strings.NewReader(""), terminal, &stderr, environ); code != 0 {
		t.Errorf("%v: exit code %d, stderr %q", args, code, stderr.String())
	}
	_ = terminal.Close()
	return <-read
}

func TestATerminalShowsTheBeginningsOfIDsAndOthersWholeOnes(t *testing.T) {
	const id = "k.default.abcdefghijklmnopqrstuvwxyz"
	s := startFake(t, nil)
	s.Add(&errandv1.Run{Id: id, Status: errandv1.Status_STATUS_RUNNING, Spec: &errandv1.RunSpec{Command: []string{"a-long-command", strings.Repeat("x", 80)}}})
	environ := []string{"ERRAND_ADDRESS=" + s.URL()}
	short := onTerminal(t, 80, environ, "runs")
	if !strings.Contains(short, "\nabcdefghijkl   ") || strings.Contains(short, "default") || !strings.Contains(short, "…") {
		t.Errorf("a terminal: %q", short)
	}
	if got := onTerminal(t, 80, append(environ, "NO_COLOR=1"), "runs"); strings.Contains(got, "\x1b") {
		t.Errorf("without colour: %q", got)
	}
	for _, whole := range []string{onTerminal(t, 80, environ, "runs", "--no-trunc"), onTerminal(t, 80, environ, "runs", "-q"), onTerminal(t, 80, environ, "runs", "-o", "json"), newInvocation(t, s.URL()).run("runs").stdout} {
		if !strings.Contains(whole, id) || strings.Contains(whole, "…") {
			t.Errorf("whole: %q", whole)
		}
	}
	if found := newInvocation(t, s.URL()).run("show", "-o", "json", "abcdefghijkl"); !strings.Contains(found.stdout, id) {
		t.Errorf("what is shown does not find the run: %+v", found)
	}
}
