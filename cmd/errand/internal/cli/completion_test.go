package cli

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/errand-run/errand/api/fakeapi"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

func completionServer(t *testing.T) *fakeapi.Server {
	s := startFake(t, func(s *fakeapi.Server) { s.Nodes = []*errandv1.Node{{Id: "n1"}, {Id: "n2", Away: true}} })
	s.Add(&errandv1.Run{Id: "r.default.done", Name: "n1", Status: errandv1.Status_STATUS_SUCCEEDED})
	s.Add(&errandv1.Run{Id: "r.default.going", Status: errandv1.Status_STATUS_RUNNING})
	return s
}

func TestCompletionOffersWhatTheCommandCanBeAbout(t *testing.T) {
	s := completionServer(t)
	s.Images = []*errandv1.Image{{Name: "docker.io/library/busybox:latest"}, {Name: "registry.example/tool:1"}}
	i := newInvocation(t, s.URL())
	for line, want := range map[string]string{
		"show |":                 "r.default.going\tRUNNING r.default.done\tSUCCEEDED n1",
		"cancel |":               "r.default.going\tRUNNING",
		"wait r.default.going |": "",
		"show r.default.going |": "",
		"logs |r.default.d":      "r.default.done\tSUCCEEDED n1",
		"logs |do":               "done\tSUCCEEDED n1",
		"image rm |":             "docker.io/library/busybox:latest busybox:latest registry.example/tool:1",
		"run |bu":                "busybox:latest",
		"console |reg":           "registry.example/tool:1",
		"run busybox |":          "",
		"node check |":           "n1\tready n2\taway",
		"run --driver |":         "containerd process null",
		"runs --status |":        "PENDING RUNNING SUCCEEDED FAILED TIMED_OUT CANCELED SKIPPED",
		"runs -o |":              "table json yaml",
		"logs --stream |":        "stdout stderr",
		"node rm |":              "n2\taway",
		"node rm n2 |":           "",
		"|sh":                    "show\tShow a run and its attempts",
		"image |":                "import\tImport the images of a docker or OCI archive ls\tList the images of the node pull\tHave the node fetch an image from its registry rm\tRemove an image of the node",
	} {
		before, typed, _ := strings.Cut(line, "|")
		args := append([]string{"__complete"}, strings.Fields(before)...)
		got := i.run(append(args, typed)...)
		lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
		if offered := strings.Join(lines[:len(lines)-1], " "); offered != want {
			t.Errorf("%s: offered %q, want %q", line, offered, want)
		}
	}
}

func TestCompletionWithoutANodeOffersNothing(t *testing.T) {
	got := newInvocation(t, "http://127.0.0.1:1").run("__complete", "show", "")
	if got.code != 0 || got.stdout != ":4\n" {
		t.Errorf("%+v", got)
	}
}

func TestCompletionWorksInBash(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal(err)
	}
	s := completionServer(t)
	script := newInvocation(t, s.URL()).run("completion", "bash")
	if script.code != 0 {
		t.Fatal(script.stderr)
	}
	// The completion library of bash is an extra package; what cobra uses of it is
	// given in the small.
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, dir+"/errand"); err != nil {
		t.Fatal(err)
	}
	program := `
_get_comp_words_by_ref() { cur=${COMP_WORDS[COMP_CWORD]}; prev=${COMP_WORDS[COMP_CWORD-1]}; words=("${COMP_WORDS[@]}"); cword=$COMP_CWORD; }
__ltrim_colon_completions() { :; }
compopt() { :; }
` + script.stdout + `
COMP_WORDS=(errand cancel r.d); COMP_CWORD=2; COMP_LINE="errand cancel r.d"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9
__start_errand
printf '%s\n' "${COMPREPLY[@]}"`
	cmd := exec.Command(bash, "-c", program)
	cmd.Env = []string{asErrand + "=1", "ERRAND_ADDRESS=" + s.URL(), "ERRAND_DATA=" + dir, "PATH=" + dir + ":" + os.Getenv("PATH")}
	output, err := cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(output)) != "r.default.going" {
		t.Errorf("%v: %q", err, output)
	}
}

func TestVersion(t *testing.T) {
	got := newInvocation(t, "http://127.0.0.1:1").run("version")
	if got.code != 0 || !strings.HasPrefix(got.stdout, "errand ") {
		t.Errorf("%+v", got)
	}
	if got := newInvocation(t, "x").run("version", "-o", "json"); !strings.Contains(got.stdout, `"version": "`) {
		t.Errorf("%+v", got)
	}
}
