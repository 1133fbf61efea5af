package cli

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/api/codes"
)

// readKeys reads all that is typed.
func readKeys(from io.Reader, keys string) string {
	text, err := io.ReadAll(&keyReader{from: from, keys: []byte(keys)})
	if !errors.Is(err, errDetached) {
		panic(err)
	}
	return string(text)
}

func TestKeysThatDetachAreKeptAndAllOthersPass(t *testing.T) {
	for _, test := range []struct{ name, typed, keys, passed string }{
		{name: "at once", typed: "ab\x10\x11cd", keys: "\x10\x11", passed: "ab"},
		{name: "a part of them", typed: "\x10a\x10", keys: "\x10\x11", passed: "\x10a"},
		{name: "the first one twice", typed: "\x10\x10\x11x", keys: "\x10\x11", passed: "\x10"},
		{name: "their beginning repeats", typed: "aaab!", keys: "aab", passed: "a"},
		{name: "one key", typed: "xyz", keys: "y", passed: "x"},
		{name: "none", typed: "\x10\x11", keys: "", passed: "\x10\x11"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for how, from := range map[string]io.Reader{
				"together": strings.NewReader(test.typed), "one by one": iotest.OneByteReader(strings.NewReader(test.typed)),
			} {
				if passed := readKeys(from, test.keys); passed != test.passed {
					t.Errorf("%s: %q passed, want %q", how, passed, test.passed)
				}
			}
		})
	}
}

// TestWhatIsBeforeTheKeysPasses for any keys and whatever is typed: all before the first
// place at which they stand.
func TestWhatIsBeforeTheKeysPasses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.StringMatching(`[ab]{1,4}`).Draw(t, "keys")
		typed := rapid.StringMatching(`[abc]{0,40}`).Draw(t, "typed")
		want, _, found := strings.Cut(typed, keys)
		passed := readKeys(iotest.HalfReader(strings.NewReader(typed)), keys)
		if found && passed != want {
			t.Fatalf("%q passed, want %q", passed, want)
		}
		if !found && !strings.HasPrefix(typed, passed) {
			t.Fatalf("%q passed of %q", passed, typed)
		}
		if !found && len(typed)-len(passed) >= len(keys) {
			t.Fatalf("%q passed of %q: too much is held back", passed, typed)
		}
	})
}

func TestDetachKeysAreParsed(t *testing.T) {
	for text, want := range map[string]string{
		"ctrl-p,ctrl-q": "\x10\x11", "x": "x", "ctrl-a,d": "\x01d", "ctrl-[": "\x1b", "ctrl-@": "\x00", "none": "", "~": "~",
	} {
		if keys, err := parseKeys(text); err != nil || string(keys) != want {
			t.Errorf("%q: %q, %v; want %q", text, keys, err, want)
		}
	}
	for _, text := range []string{"", "ctrl-", "ctrl-pq", "ctrl-1", "abc", "a,,b", "\x01", " ", "ctrl-p,"} {
		if keys, err := parseKeys(text); err == nil {
			t.Errorf("%q: %q", text, keys)
		}
	}
}

// What keeps a run from its input is said of what it was: the connection, or stdin here.
func TestInputThatIsLostIsSaidWithItsCause(t *testing.T) {
	broke := &client.Error{Code: codes.Unreachable, Message: "node does not answer"}
	failed := errors.New("input/output error")
	for _, test := range []struct {
		name string
		err  error
		want string
	}{
		{"the connection broke", &client.InputLostError{Unsure: 1, Err: broke}, "the connection to the node broke, and it is not known whether the last 1 byte of the input has reached the command"},
		{"stdin failed", failed, "read stdin: input/output error"},
		{"stdin failed behind what was not taken", &client.InputLostError{Unsure: 3, Err: failed}, "read stdin: input/output error; it is not known whether the last 3 bytes of the input have reached the command"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var f *failure
			if err := (&typing{c: &connection{}}).explain(test.err, "r.a.x"); !errors.As(err, &f) || f.message != test.want || f.exit != ExitErrand || f.code != codeInput {
				t.Errorf("%+v", err)
			}
		})
	}
}

func TestHintOfACreationIsNoEmptyLine(t *testing.T) {
	var f *failure
	err := (&connection{}).explainCreate(&client.Error{Code: codes.StoreUnavailable, Message: "the store is away", Unsure: true})
	if !errors.As(err, &f) || !strings.HasPrefix(f.hint, "Whether the run was created is not known") {
		t.Errorf("%+v", err)
	}
}
