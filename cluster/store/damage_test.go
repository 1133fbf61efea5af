package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// filled is the directory of a store that holds something and is closed.
func filled(t *testing.T) (dir, data, log string) {
	t.Helper()
	dir = dataDir(t)
	s := openAt(t, Config{DataDir: dir})
	for i := range 200 {
		do(t, s, putTxn(fmt.Sprintf("k%d", i), strings.Repeat("v", 100)))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	member := filepath.Join(dir, serverName, "member")
	logs, err := filepath.Glob(filepath.Join(member, "wal", "*.wal"))
	if err != nil || len(logs) != 1 {
		t.Fatalf("write-ahead logs %v, %v", logs, err)
	}
	return dir, filepath.Join(member, "snap", "db"), logs[0]
}

// overwrite changes a file's bytes from an offset on, each as told.
func overwrite(t *testing.T, path string, from, step int, change func(byte) byte) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := from; at < len(content); at += step {
		content[at] = change(content[at])
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestOpenEmbeddedThatIsDamagedSaysSo(t *testing.T) {
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	turn := func(b byte) byte { return ^b }
	type damage struct {
		name   string
		damage func(t *testing.T, data, log string)
		says   string
	}
	cases := []damage{
		{"data cut off", func(t *testing.T, data, _ string) { must(t, os.Truncate(data, 8192)) }, "8192 bytes"},
		{"data empty", func(t *testing.T, data, _ string) { must(t, os.Truncate(data, 0)) }, "empty"},
		{"data zero", func(t *testing.T, data, _ string) { overwrite(t, data, 8192, 1, func(byte) byte { return 0 }) }, "pages"},
		{"data turned", func(t *testing.T, data, _ string) { overwrite(t, data, 8192, 997, turn) }, "pages"},
		{"data something else", func(t *testing.T, data, _ string) {
			must(t, os.WriteFile(data, []byte(strings.Repeat("not a database", 9000)), 0o600))
		}, "can not be read"},
		{"log cut off", func(t *testing.T, _, log string) { must(t, os.Truncate(log, 20_000)) }, "ends at entry"},
		{"log empty", func(t *testing.T, _, log string) { must(t, os.Truncate(log, 0)) }, "empty"},
		{"log missing", func(t *testing.T, _, log string) { must(t, os.Remove(log)) }, "missing"},
		{"log's directory missing", func(t *testing.T, _, log string) { must(t, os.RemoveAll(filepath.Dir(log))) }, "missing"},
	}
	// A bit in a record's value is found by its checksum, one in its frame by the decoder.
	for at := range 16 {
		cases = append(cases, damage{fmt.Sprintf("log turned at %d", 9000+at), func(t *testing.T, _, log string) { overwrite(t, log, 9000+at, 1<<30, turn) }, "write-ahead log"})
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir, data, log := filled(t)
			c.damage(t, data, log)
			s, err := Open(context.Background(), Config{DataDir: dir})
			if err == nil {
				t.Fatalf("opened, and closed with %v", s.Close())
			}
			for _, word := range []string{dir, c.says, "--accept-loss-of store"} {
				if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), word) {
					t.Errorf("error %v; want %q", err, word)
				}
			}
			if strings.Contains(err.Error(), "runtime error") || strings.Contains(err.Error(), "assertion") {
				t.Errorf("error %v", err)
			}
		})
	}
}

// A folder that can not be read is not one that is empty: nobody is told to give the store
// up for that. Root may read all folders, so this is one that is none.
func TestLogThatCanNotBeLookedForIsNoDamage(t *testing.T) {
	dir, _, log := filled(t)
	logs := filepath.Dir(log)
	if err := errors.Join(os.Rename(logs, logs+".kept"), os.WriteFile(logs, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(context.Background(), Config{DataDir: dir}); err == nil || errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), logs) {
		t.Errorf("error %v", err)
	}
}

// Nobody is told to give the store up because of a limit of the process or a disk that fails.
func TestFilesThatTheSystemRefusesAreNoDamage(t *testing.T) {
	t.Run("data", func(t *testing.T) {
		dir, data, _ := filled(t)
		if err := errors.Join(os.Rename(data, data+".kept"), os.Mkdir(data, 0o700)); err != nil {
			t.Fatal(err)
		}
		_, err := Open(context.Background(), Config{DataDir: dir})
		if !errors.Is(err, syscall.EISDIR) || errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), data) {
			t.Errorf("error %v", err)
		}
	})
	for _, c := range []struct {
		name    string
		cause   error
		damaged bool
	}{
		{"a log that may not become as large", &os.PathError{Op: "write", Path: "0.wal", Err: syscall.EFBIG}, false},
		{"a log that the disk does not give", fmt.Errorf("read: %w", syscall.EIO), false},
		{"a log of something else", errors.New("wal: crc mismatch"), true},
		{"a panic without a cause", nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			log := quiet(zap.NewNop(), zapcore.WarnLevel)
			_, err := launch("/data", func() (*embed.Etcd, error) {
				log.Panic("failed to open WAL", zap.Error(c.cause))
				return nil, nil
			})
			if errors.Is(err, ErrDamaged) != c.damaged || !strings.Contains(err.Error(), "/data") {
				t.Errorf("error %v", err)
			}
			if !c.damaged && (!errors.Is(err, c.cause) || !strings.Contains(err.Error(), "failed to open WAL")) {
				t.Errorf("error %v; want the cause %v", err, c.cause)
			}
		})
	}
}
