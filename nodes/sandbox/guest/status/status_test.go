package status

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func samples() []Status {
	at := time.Unix(1_700_000_000, 123456789)
	return []Status{
		{State: Starting, Stage: StageNone, At: at},
		{State: Running, Stage: StageNone, StartedAt: at, At: at},
		{State: ExecFailed, Value: 2, Stage: StageExec, At: at},
		{State: Exited, Value: 0, Stage: StageNone, StartedAt: at, At: at.Add(time.Second)},
		{State: Exited, Value: 255, Stage: StageNone, StartedAt: at, At: at.Add(time.Hour), Leftover: true},
		{State: Signaled, Value: 64, Stage: StageNone, StartedAt: at, At: at, OOMKills: 1 << 30, Leftover: true, LogIncomplete: true},
		{State: ExecFailed, Value: 13, Stage: StageLookup, At: at, Final: true},
		{State: Exited, Value: 7, Stage: StageNone, StartedAt: at, At: at, Final: true},
		{State: Exited, Value: 7, Stage: StageNone, StartedAt: at, At: at, Reach: Unreached},
		{State: Signaled, Value: 15, Stage: StageNone, StartedAt: at, At: at, Leftover: true, LogIncomplete: true, Reach: Reached, Final: true},
		{
			State: Signaled, Value: 64, Stage: StageNone, StartedAt: time.Unix(0, math.MaxInt64), At: time.Unix(0, math.MaxInt64), OOMKills: math.MaxInt32,
			Leftover: true, LogIncomplete: true, LogUnwritten: true, Reach: Reached, Final: true, MemoryPeak: math.MaxInt64,
		},
	}
}

func TestStatusReadsBackAsWritten(t *testing.T) {
	for _, want := range samples() {
		t.Run(want.State.String(), func(t *testing.T) {
			got, err := Decode(Encode(want))
			if err != nil || got != want {
				t.Fatalf("got %+v, %v; want %+v", got, err, want)
			}
		})
	}
}

func TestLastValidSlotCounts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status")
	if err := Create(path, os.Geteuid(), os.Getegid()); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(path); err != nil || got.State != Empty {
		t.Fatalf("fresh file: %+v, %v", got, err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := samples()
	for _, want := range []Status{s[0], s[1], s[4], s[7]} {
		if err := f.Write(want); err != nil {
			t.Fatal(err)
		}
		if got, err := Read(path); err != nil || got != want {
			t.Fatalf("got %+v, %v; want %+v", got, err, want)
		}
	}
	// A torn last slot leaves the word before it.
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for slot, want := range map[int]Status{3: s[4], 2: s[1]} {
		torn := bytes.Clone(b)
		for later := slot; later < slots; later++ {
			torn[later*SlotSize+12] ^= 1
		}
		if got, err := Decode(torn); err != nil || got != want {
			t.Fatalf("torn slot %d: got %+v, %v; want %+v", slot, got, err, want)
		}
	}
}

func TestHostileFilesAreRefused(t *testing.T) {
	dir := t.TempDir()
	good := Encode(samples()[3])
	forged := Status{State: Exited, Value: 256, Stage: StageNone}
	misplaced := make([]byte, Size)
	copy(misplaced, samples()[3].encodeSlot(""))
	cases := map[string][]byte{
		"text":             []byte("exited 0\n"),
		"too long":         append(append([]byte{}, good...), 0),
		"code of 256":      Encode(forged),
		"exit in slot 0":   misplaced,
		"signal 0":         Encode(Status{State: Signaled, Stage: StageNone}),
		"negative errno":   Encode(Status{State: ExecFailed, Value: -1, Stage: StageExec}),
		"huge, all filled": make([]byte, 1<<20),
	}
	for name, content := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, "f")
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			if got, err := Read(path); !errors.Is(err, ErrMalformed) {
				t.Fatalf("got %+v, %v", got, err)
			}
		})
	}
	t.Run("link", func(t *testing.T) {
		path := filepath.Join(dir, "link")
		if err := os.Symlink("f", path); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); !errors.Is(err, syscall.ELOOP) {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("pipe", func(t *testing.T) {
		path := filepath.Join(dir, "pipe")
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); !errors.Is(err, ErrMalformed) {
			t.Fatalf("got %v", err)
		}
	})
	t.Run("absent", func(t *testing.T) {
		if _, err := Read(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("got %v", err)
		}
	})
}

func FuzzDecode(f *testing.F) {
	for _, s := range samples() {
		f.Add(Encode(s))
	}
	f.Add([]byte("errand1 exited 0 - 0 0 0 - 00000000\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Decode(b)
		if err != nil || s.State == Empty {
			return
		}
		again, err := Decode(Encode(s))
		if err != nil || again != s {
			t.Fatalf("%+v reads back as %+v, %v", s, again, err)
		}
	})
}

func TestWhatAnotherOwnerWroteIsNotValid(t *testing.T) {
	for i, s := range samples() {
		b := EncodeOf("e1", s)
		if got, err := DecodeOf("e1", b); err != nil || got.State != s.State {
			t.Errorf("sample %d of its owner: %v, %v", i, got, err)
		}
		for _, owner := range []string{"", "e2", "e11"} {
			if got, err := DecodeOf(owner, b); !errors.Is(err, ErrMalformed) {
				t.Errorf("sample %d of another owner %q: %v, %v", i, owner, got, err)
			}
		}
	}
}
