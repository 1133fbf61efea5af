package report_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/simulation/history"
	"github.com/errand-run/errand/simulation/report"
)

var update = flag.Bool("update", false, "write the golden files anew")

const run = "r.app.one"

type packet struct{ From, To string }

func (*packet) String() string { return "Start for run/" + run }

// sample is a run that succeeds on the second of two nodes while the first is cut
// off, and one event of another run.
func sample(observe func(history.Event)) {
	h := history.New()
	h.Observe(observe)
	step := uint64(0)
	add := func(at time.Duration, e history.Event) {
		step += 3
		e.Step, e.At = step, at
		h.Add(e)
	}
	record := func(run *recordv1.Run) *records.KV { return &records.KV{Value: records.Encode(run)} }
	pending := &recordv1.Run{Id: run, Status: recordv1.Status_STATUS_PENDING, Attempt: 1}
	placed := &recordv1.Run{Id: run, Status: recordv1.Status_STATUS_RUNNING, Attempt: 1, Placement: &recordv1.Placement{Node: "n2", Number: 1}}
	done := &recordv1.Run{Id: run, Status: recordv1.Status_STATUS_SUCCEEDED, Attempt: 1, ExitCode: proto.Int32(0)}
	key, live := "/errand/runs/3/"+run, "/errand/live/3/"+run
	start := &packet{"n1", "n2"}

	add(0, history.Event{Kind: history.KindDaemon, Node: "n1", Text: "launched"})
	add(0, history.Event{Kind: history.KindDaemon, Node: "n2", Text: "launched"})
	add(time.Second, history.Event{Kind: history.KindCall, Node: "n1", Run: run, Text: "submit a", Detail: history.Call{ID: 1, Verb: "submit", Key: "a", Run: run}})
	add(1002*time.Millisecond, history.Event{Kind: history.KindCommit, Text: "", Detail: history.Commit{Revision: 7, Changes: []history.Change{
		{Key: key, After: record(pending)}, {Key: live, After: &records.KV{}},
	}}})
	add(1003*time.Millisecond, history.Event{Kind: history.KindAnswer, Node: "n1", Run: run, Text: "is there", Detail: history.Call{ID: 1, Verb: "submit", Key: "a", Run: run, Outcome: "ok", Detail: pending}})
	add(1100*time.Millisecond, history.Event{Kind: history.KindPacket, Node: "n1", Run: run, Text: "n1 sends n2", Detail: start})
	add(1104*time.Millisecond, history.Event{Kind: history.KindPacket, Node: "n2", Run: run, Text: "n2 receives from n1", Detail: start})
	add(1200*time.Millisecond, history.Event{Kind: history.KindCommand, Node: "n2", Run: run, Attempt: 1, Placement: 1, Detail: history.Command{Started: true, Token: 8}})
	add(1210*time.Millisecond, history.Event{Kind: history.KindCommit, Detail: history.Commit{Revision: 9, Changes: []history.Change{{Key: key, Before: record(pending), After: record(placed)}}}})
	add(2*time.Second, history.Event{Kind: history.KindFault, Node: "n1", Detail: history.Fault{Name: "cut", Begin: true}})
	add(2500*time.Millisecond, history.Event{Kind: history.KindFault, Node: "n2", Text: "drifts", Detail: history.Fault{Name: "drift", Begin: true, Outside: true}})
	add(3*time.Second, history.Event{Kind: history.KindLog, Node: "n2", Run: "r.app.other", Text: "two\nlines </script>"})
	add(3661*time.Second, history.Event{Kind: history.KindCommand, Node: "n2", Run: run, Attempt: 1, Placement: 1, Detail: history.Command{Code: 0, Cause: "itself"}})
	add(3662*time.Second, history.Event{Kind: history.KindCommit, Detail: history.Commit{Revision: 12, Changes: []history.Change{
		{Key: key, Before: record(placed), After: record(done)}, {Key: live, Before: &records.KV{}},
	}}})
	add(3663*time.Second, history.Event{Kind: history.KindFault, Node: "n1", Detail: history.Fault{Name: "cut"}})
}

func TestTextIsTheGoldenFile(t *testing.T) {
	for name, filter := range map[string]report.Filter{
		"all.txt":  {},
		"run.txt":  {Run: run},
		"kind.txt": {Kinds: []history.Kind{history.KindFault}},
	} {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			text := report.NewText(&got, filter)
			sample(text.Observe)
			if text.Err() != nil {
				t.Fatal(text.Err())
			}
			path := filepath.Join("testdata", name)
			if *update {
				if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(got.Bytes(), want) {
				t.Errorf("%v\ngot\n%s\nwant\n%s", err, got.Bytes(), want)
			}
		})
	}
}

func TestJSONHasALineForEachEvent(t *testing.T) {
	var out bytes.Buffer
	trace := report.NewJSON(&out, report.Filter{})
	sample(trace.Observe)
	lines, commands := 0, 0
	for line := range bytes.Lines(out.Bytes()) {
		var entry struct {
			Step    uint64
			Kind    string
			Command *history.Command
			Commit  *struct{ Changes []string }
		}
		decoder := json.NewDecoder(bytes.NewReader(line))
		if err := decoder.Decode(&entry); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		lines++
		if entry.Command != nil {
			commands++
		}
		if entry.Step == 0 || entry.Kind == "" || (entry.Kind == "commit") != (entry.Commit != nil) {
			t.Errorf("%s", line)
		}
	}
	if lines != 15 || commands != 2 || trace.Err() != nil {
		t.Errorf("%d lines, %d commands, %v", lines, commands, trace.Err())
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestAnErrorOfTheWriterIsKept(t *testing.T) {
	text, trace := report.NewText(broken{}, report.Filter{}), report.NewJSON(broken{}, report.Filter{})
	sample(text.Observe)
	sample(trace.Observe)
	for _, err := range []error{text.Err(), trace.Err(), report.NewPage(report.Filter{}, 0).Write(broken{}, "x", nil)} {
		if err == nil || !strings.Contains(err.Error(), "disk full") {
			t.Errorf("%v", err)
		}
	}
}

var embedded = regexp.MustCompile(`(?s)<script type="application/json" id="data">(.*?)</script>`)

type page struct {
	Title, Note string
	Lanes       []string
	Marks       []struct{ L, K, X, F string }
	Bars        []struct {
		L, R, X string
		B, E    float64
		O       bool
	}
	Shades []struct {
		L, X, N string
		B, E    float64
		M       bool
	}
	Findings []struct{ X string }
}

func write(t *testing.T, p *report.Page, title string, findings ...report.Finding) (page, []byte) {
	t.Helper()
	var out bytes.Buffer
	if err := p.Write(&out, title, findings); err != nil {
		t.Fatal(err)
	}
	data := embedded.FindSubmatch(out.Bytes())
	if data == nil {
		t.Fatalf("no data in\n%s", out.Bytes())
	}
	var decoded page
	if err := json.Unmarshal(data[1], &decoded); err != nil {
		t.Fatal(err)
	}
	return decoded, out.Bytes()
}

func TestPageHasLanesBarsShadesAndArrows(t *testing.T) {
	p := report.NewPage(report.Filter{}, 0)
	sample(p.Observe)
	got, text := write(t, p, "seed 7 </title>", report.Finding{At: time.Second, Text: "G3: two at once"})
	if want := "clients store world n1 n2"; strings.Join(got.Lanes, " ") != want {
		t.Errorf("lanes %v, want %s", got.Lanes, want)
	}
	if len(got.Bars) != 1 || got.Bars[0].L != "n2" || got.Bars[0].R != run || got.Bars[0].B != 1.2 || got.Bars[0].E != 3661 || got.Bars[0].O {
		t.Errorf("bars %+v", got.Bars)
	}
	if len(got.Shades) != 2 || got.Shades[0].E != 3663 || got.Shades[0].M || !got.Shades[1].M || got.Shades[1].E != 3663 {
		t.Errorf("shades %+v: a fault that has not ended lasts to the end", got.Shades)
	}
	arrows := 0
	for _, m := range got.Marks {
		if m.F != "" {
			arrows++
			if m.F != "n1" || m.L != "n2" {
				t.Errorf("arrow from %s to %s", m.F, m.L)
			}
		}
	}
	if arrows != 1 || len(got.Marks) != 15 || len(got.Findings) != 1 || got.Note != "" {
		t.Errorf("%d arrows, %d marks, %d findings, note %q", arrows, len(got.Marks), len(got.Findings), got.Note)
	}
	for _, outside := range []string{"http://", "https://", "<link", "src=", "seed 7 </title>", "@import"} {
		if strings.Contains(string(text), outside) {
			t.Errorf("the page holds %q", outside)
		}
	}
}

func TestPageShowsAFaultOfOneMomentAtThatMoment(t *testing.T) {
	p := report.NewPage(report.Filter{}, 0)
	p.Observe(history.Event{At: time.Second, Kind: history.KindFault, Detail: history.Fault{Name: "compaction", Begin: true, Instant: true}})
	p.Observe(history.Event{At: time.Hour, Kind: history.KindLog, Node: "n1", Text: "much later"})
	got, _ := write(t, p, "a moment")
	if len(got.Shades) != 1 || got.Shades[0].B != 1 || got.Shades[0].E != 1 || got.Shades[0].N != "compaction" {
		t.Errorf("%+v", got.Shades)
	}
}

func TestPageIsBounded(t *testing.T) {
	p := report.NewPage(report.Filter{}, 10)
	for i := range 1000 {
		p.Observe(history.Event{Step: uint64(i), At: time.Duration(i) * time.Second, Kind: history.KindLog, Node: "n1", Text: strconv.Itoa(i)})
	}
	got, _ := write(t, p, "many")
	if len(got.Marks) != 10 || got.Marks[0].X != "990" || got.Marks[9].X != "999" || !strings.HasPrefix(got.Note, "990 earlier marks") {
		t.Errorf("%d marks from %s, note %q", len(got.Marks), got.Marks[0].X, got.Note)
	}
}

// The page is drawn by a browser that has nothing but the file: all of it, or what
// happens within the seconds that its address names.
func TestPageIsDrawnByABrowser(t *testing.T) {
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("chromium is missing: make packages")
		}
		t.Skip("chromium is missing: make packages")
	}
	p := report.NewPage(report.Filter{}, 0)
	sample(p.Observe)
	var out bytes.Buffer
	if err := p.Write(&out, "seed 7", []report.Finding{{At: 2 * time.Second, Text: "G3: two at once"}}); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	path := filepath.Join(folder, "page.html")
	if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]string{
		path:                "19", // 15 marks of which one is an arrow, a bar, two shades and a finding
		path + "#3660,3664": "7",  // the last three marks, the end of the bar, the shades, the finding
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		command := exec.CommandContext(ctx, chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
			"--user-data-dir="+filepath.Join(folder, "profile"), "--virtual-time-budget=2000", "--dump-dom", "file://"+address)
		command.Env = append(os.Environ(), "HOME="+folder)
		dom, err := command.Output()
		if err != nil {
			t.Fatalf("chromium: %v", err)
		}
		drawn := regexp.MustCompile(`data-drawn="(\d+)"`).FindSubmatch(dom)
		if drawn == nil || string(drawn[1]) != want || !bytes.Contains(dom, []byte("G3: two at once")) {
			t.Errorf("%s: drawn %s, want %s, in\n%.2000s", address, drawn, want, dom)
		}
	}
}
