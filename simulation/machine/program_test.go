package machine

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
)

func TestProgramsAreReadAsTheyAreWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawProgram(t)
		if want.StartError == 0 && want.CreateRefused == 0 && rapid.Bool().Draw(t, "on term") {
			want.OnTerm, want.TermAfter, want.TermCode = true, second, rapid.Int32Range(0, 255).Draw(t, "term code")
		}
		got, err := ParseProgram(want.Command())
		if err != nil || got != want {
			t.Fatalf("%q is read as %+v, %v; want %+v", want.Command(), got, err, want)
		}
	})
	want := Program{CreateError: recordv1.Reason_REASON_SECRET}
	if got, err := ParseProgram(want.Command()); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestProgramsThatAreNone(t *testing.T) {
	for command, want := range map[string]string{
		"":                                  "word 1 of the command: is missing",
		"sleep 5":                           `word 2 of the command: there is no "sleep"`,
		"sleep-exit":                        "word 2 of the command: is missing",
		"sleep-exit 5":                      "missing unit",
		"sleep-exit -5s 0":                  "is negative",
		"sleep-exit 5s 256":                 "256 is not in 0 to 255",
		"sleep-exit 5s 0 0":                 "nothing may follow it",
		"sleep-signal 5s 0":                 "0 is not in 1 to 64",
		"fork 5s":                           "is missing",
		"start-error UNSPECIFIED":           `unknown reason "UNSPECIFIED"`,
		"start-error NO_SUCH":               `unknown reason "NO_SUCH"`,
		"ignore-term start-error NOT_FOUND": "start-error stands alone",
	} {
		if _, err := ParseProgram(strings.Fields(command)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", command, err, want)
		}
	}
}

func FuzzParseProgram(f *testing.F) {
	for _, text := range []string{"sleep-exit 1500ms 3", "fork 1h ignore-term on-term 1s 2 sleep-signal 1s 9", "sleep-oom 0s", "create-refused IMAGE_PULL"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParseProgram(strings.Fields(text))
		if err != nil {
			return
		}
		if again, err := ParseProgram(p.Command()); err != nil || again != p {
			t.Errorf("%q is %+v, written again %+v, %v", text, p, again, err)
		}
	})
}

func TestReadingAProgramKeepsItsTimes(t *testing.T) {
	p, err := ParseProgram([]string{"on-term", "2s", "5", "fork", "3s", "sleep-exit", "1500ms", "3"})
	if err != nil || p.After != 1500*time.Millisecond || p.Fork != 3*second || p.TermAfter != 2*second || p.TermCode != 5 || p.Code != 3 {
		t.Errorf("got %+v, %v", p, err)
	}
}
