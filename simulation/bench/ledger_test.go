package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestALedgerRefuses(t *testing.T) {
	for _, c := range []struct{ name, text, look, whole string }{
		{name: "nothing, when nothing is wrong", text: "2\n1\n3\n"},
		{name: "a number that is missing", text: "3\n1\n", whole: "1 of 3 commands that were submitted have not run: [2]"},
		{name: "a number that is there twice", text: "1\n2\n1\n3\n", look: "command 1 has run twice"},
		{name: "a number that nobody has submitted", text: "1\n2\n4\n3\n", look: "command 4 has run and was not submitted"},
		{name: "a line that is no number", text: "1\n${NUMBER}\n", look: `the ledger has "${NUMBER}", which is no number`},
		{name: "an empty line", text: "1\n\n", look: `the ledger has "", which is no number`},
		{name: "a line that never ends", text: "1\n2\n3333333333333333333333333333333333", look: `the ledger has "3333333333333333333333333333333333", which is no number`},
		{name: "a line without its end", text: "1\n2\n3", whole: `the ledger ends with "3", which is no line`},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := ledgerOf(t, t.TempDir())
			for number := 1; number <= 3; number++ {
				l.expect(number)
			}
			if err := os.WriteFile(l.path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := l.look()
			wantError(t, err, c.look)
			if c.look == "" {
				wantError(t, l.whole(), c.whole)
			}
		})
	}
}

func TestALedgerNamesSomeOfManyThatAreMissing(t *testing.T) {
	l := ledgerOf(t, t.TempDir())
	for number := range 12 {
		l.expect(number)
	}
	wantError(t, l.whole(), "12 of 12 commands that were submitted have not run: [0 1 2 3 4 5 6 7 8 9] and others")
}

func TestACommandWritesItsLineWhateverTheFolderIsCalled(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "a folder's $(name)")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	l := ledgerOf(t, folder)
	arrived := l.expect(7)
	command := l.command(7)
	if output, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	if there, err := l.look(); there != 1 || err != nil {
		t.Fatalf("%d arrived, %v", there, err)
	}
	select {
	case <-arrived:
	default:
		t.Error("nobody was told")
	}
	wantError(t, l.whole(), "")
}

func ledgerOf(t *testing.T, folder string) *ledger {
	t.Helper()
	l, err := newLedger(filepath.Join(folder, "ledger"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// wantError compares an error's text; none is "".
func wantError(t *testing.T, err error, want string) {
	t.Helper()
	got := ""
	if err != nil {
		got = err.Error()
	}
	if got != want {
		t.Errorf("error %q, want %q", got, want)
	}
}
