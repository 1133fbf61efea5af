package cli

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestBarFitsTheTerminal(t *testing.T) {
	s := state{executed: 1234, total: 5000, failures: 2, took: 2 * time.Minute, virtual: 100 * time.Hour}
	for width := range 200 {
		if line := bar(s, width); len(line) >= max(width, 1) {
			t.Errorf("%d columns: %d: %s", width, len(line), line)
		}
	}
	if got, want := bar(s, 120), "[#######.......................] 1234/5000  2 failed  10.3 seeds/s  3000x real time  2m0s  6m6s left"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if got, want := bar(s, 40), "1234/5000  2 failed  10.3 seeds/s  2m0s"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	for _, s := range []state{{}, {total: 3}, {executed: 9, total: 3, took: time.Second}} {
		if line := bar(s, 80); line == "" {
			t.Errorf("%+v: nothing", s)
		}
	}
}

// terminal returns a terminal of so many columns, and what was written to it so far.
func terminal(t *testing.T, columns uint16) (user *os.File, resize func(columns uint16), written func() string) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	if user, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = user.Close(), screen.Close() })
	resize = func(columns uint16) {
		if err := unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}); err != nil {
			t.Error(err)
		}
	}
	resize(columns)
	return user, resize, func() string {
		buffer := make([]byte, 1<<16)
		n, err := screen.Read(buffer)
		if err != nil {
			t.Error(err)
		}
		return string(buffer[:n])
	}
}

func TestProgressIsDrawnOnATerminalOfAnyWidthAndOnNothingElse(t *testing.T) {
	user, resize, written := terminal(t, 80)
	var found tally
	found.executed.Store(40)
	p := startProgress(user, 100, &found)
	wide := written()
	resize(20)
	narrow := written()
	for i := 0; i < 5 && len(narrow) > 20; i++ { // one more may have been under way
		narrow = written()
	}
	p.without(func() { fmt.Fprintln(user, "told") })
	p.stop()
	if !strings.HasPrefix(wide, "\r[") || !strings.Contains(wide, "40/100") || len(narrow) > 20+len("\r\x1b[K") {
		t.Errorf("%q, then %q", wide, narrow)
	}
	file, err := os.Create(t.TempDir() + "/log")
	if err != nil {
		t.Fatal(err)
	}
	p = startProgress(file, 100, &found)
	p.without(func() {})
	p.stop()
	if info, err := file.Stat(); err != nil || info.Size() != 0 {
		t.Errorf("%d bytes were drawn where there is no terminal, %v", info.Size(), err)
	}
}
