package journal

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes"
)

// writerDir makes the test binary a writer that is to be killed.
const writerDir = "ERRAND_TEST_JOURNAL_WRITER"

var update = flag.Bool("update", false, "rewrite the golden file")

func TestMain(m *testing.M) {
	if dir := os.Getenv(writerDir); dir != "" {
		writeForEver(dir)
	}
	goleak.VerifyTestMain(m)
}

func entry(run string, attempt, placement int32) *recordv1.JournalEntry {
	return &recordv1.JournalEntry{
		Run: run, Attempt: attempt, Placement: placement, State: recordv1.JournalState_JOURNAL_STATE_STARTING, Commit: 7,
	}
}

func mustOpen(t *testing.T, dir string) *Journal {
	t.Helper()
	j, err := Open(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return j
}

func write(t *testing.T, j *Journal, change nodes.JournalChange) {
	t.Helper()
	done := make(chan error, 1)
	j.Write(change, func(err error) { done <- err })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// failer is a testing.TB or a *rapid.T.
type failer interface {
	Helper()
	Fatal(args ...any)
}

func load(t failer, j *Journal) nodes.JournalContent {
	t.Helper()
	type loaded struct {
		content nodes.JournalContent
		err     error
	}
	done := make(chan loaded, 1)
	j.Load(func(content nodes.JournalContent, err error) { done <- loaded{content, err} })
	l := <-done
	if l.err != nil {
		t.Fatal(l.err)
	}
	return l.content
}

func TestJournalHoldsWhatWasWrittenInOrder(t *testing.T) {
	dir := t.TempDir()
	j := mustOpen(t, dir)
	if content := load(t, j); content.Meta != nil || len(content.Entries) > 0 {
		t.Errorf("a fresh journal holds %v", content)
	}
	meta := &recordv1.JournalMeta{Node: "n1", Uuid: "u", Generation: 3}
	write(t, j, nodes.JournalChange{Meta: meta, Puts: []*recordv1.JournalEntry{
		entry("r.a.b", 2, 1), entry("r.a.b", 1, 2), entry("r.a.a", 1, 1), entry("r.a.b", 1, 1), entry("r.a.b", 300, 1),
	}})
	write(t, j, nodes.JournalChange{Deletes: []nodes.PlacementKey{{Run: "r.a.b", Attempt: 1, Placement: 1}, {Run: "r.none.x", Attempt: 1}}})
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	content := load(t, mustOpen(t, dir))
	if !proto.Equal(content.Meta, meta) {
		t.Errorf("meta %v", content.Meta)
	}
	var got []string
	for _, e := range content.Entries {
		got = append(got, fmt.Sprintf("%s/%d/%d", e.GetRun(), e.GetAttempt(), e.GetPlacement()))
	}
	if want := "r.a.a/1/1 r.a.b/1/2 r.a.b/2/1 r.a.b/300/1"; strings.Join(got, " ") != want {
		t.Errorf("entries %v, want %s", got, want)
	}
}

func TestJournalLoadSeesEveryWriteBeforeIt(t *testing.T) {
	j := mustOpen(t, t.TempDir())
	const writes = 300
	for i := range writes {
		j.Write(nodes.JournalChange{Puts: []*recordv1.JournalEntry{entry("r.a.b", int32(i), 1)}}, func(err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	if got := len(load(t, j).Entries); got != writes {
		t.Errorf("%d entries, want %d", got, writes)
	}
}

func TestJournalChangesThatMeetShareACommit(t *testing.T) {
	j := mustOpen(t, t.TempDir())
	before := j.log.at.offset
	const writes = 2000
	done := make(chan error, writes)
	for i := range writes {
		j.Write(nodes.JournalChange{Puts: []*recordv1.JournalEntry{entry("r.a.b", int32(i), 1)}}, func(err error) { done <- err })
	}
	for range writes {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	load(t, j)
	if n := (j.log.at.offset - before) / sectorBytes; n > writes/2 {
		t.Errorf("%d sectors for %d changes", n, writes)
	}
}

func TestJournalOfAHeldDirectoryNamesDirectoryAndHolder(t *testing.T) {
	dir := t.TempDir()
	mustOpen(t, dir)
	_, err := Open(dir, "")
	if !errors.Is(err, ErrHeld) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("error %v", err)
	}
}

func TestJournalAfterCloseRefuses(t *testing.T) {
	j := mustOpen(t, t.TempDir())
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	var err error
	j.Write(nodes.JournalChange{}, func(e error) { err = e })
	if !errors.Is(err, ErrClosed) {
		t.Errorf("write: %v", err)
	}
	j.Load(func(_ nodes.JournalContent, e error) { err = e })
	if !errors.Is(err, ErrClosed) {
		t.Errorf("load: %v", err)
	}
}

// TestJournalThatIsDamagedIsRefused holds the rule that a journal is never taken
// for empty.
func TestJournalThatIsDamagedIsRefused(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"empty file": func(t *testing.T, path string) { must(t, os.Truncate(path, 0)) },
		"garbage": func(t *testing.T, path string) {
			must(t, os.WriteFile(path, bytes.Repeat([]byte("not a journal "), 4096), fileMode))
		},
		"torn after the head": func(t *testing.T, path string) { must(t, os.Truncate(path, 3*4096)) },
		"torn in the middle": func(t *testing.T, path string) {
			info, err := os.Stat(path)
			must(t, err)
			must(t, os.Truncate(path, info.Size()/4/4096*4096))
		},
		"another database": func(t *testing.T, path string) {
			must(t, os.Remove(path))
			db, err := bolt.Open(path, fileMode, nil)
			must(t, err)
			must(t, db.Close())
		},
		"an entry that is none": appended(func(l *log) {
			l.payload = appendChange(l.payload, changePut, key(nodes.PlacementKey{Run: "r.a.b"}), []byte{0xff})
		}),
		"a change that is none":      appended(func(l *log) { l.payload = append(l.payload, 9, 0, 0) }),
		"a change that does not end": appended(func(l *log) { l.payload = append(l.payload, changePut, 200) }),
		"an entry in the place of another": appended(func(l *log) {
			l.payload = appendChange(l.payload, changePut, key(nodes.PlacementKey{Run: "r.a.b", Attempt: 2, Placement: 1}), records.Encode(entry("r.a.b", 1, 1)))
		}),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			j := mustOpen(t, dir)
			for i := range 2000 {
				j.Write(nodes.JournalChange{Puts: []*recordv1.JournalEntry{entry("r.a.b", int32(i), 1)}}, func(error) {})
			}
			load(t, j)
			must(t, j.Close())
			damage(t, filepath.Join(dir, FileName))
			if broken, err := Open(dir, ""); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), dir) {
				if err == nil {
					must(t, broken.Close())
				}
				t.Errorf("error %v", err)
			} else if text := err.Error(); strings.Contains(text, "runtime error") || strings.Contains(text, "assertion") || !strings.Contains(text, "--accept-loss-of journal") {
				t.Errorf("it says %q", text)
			}
			// The directory is free again.
			must(t, os.Remove(filepath.Join(dir, FileName)))
			mustOpen(t, dir)
		})
	}
}

// appended appends a batch that no journal writes, with checksums that are right.
func appended(batch func(*log)) func(t *testing.T, path string) {
	return func(t *testing.T, path string) {
		l, err := openFile(directory(filepath.Dir(path)), path, roomBytes)
		must(t, err)
		l.begin(l.at.position + 1)
		batch(l)
		must(t, errors.Join(l.append(), l.file.Close()))
	}
}

func TestJournalThatWasNeverFinishedIsMadeAgain(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, FileName+".new"), []byte("half"), fileMode))
	if content := load(t, mustOpen(t, dir)); content.Meta != nil {
		t.Errorf("content %v", content)
	}
}

func TestJournalThatWasKilledHoldsWhatItAcknowledged(t *testing.T) {
	for round := range 5 {
		dir := t.TempDir()
		writer := exec.Command(os.Args[0])
		writer.Env = append(os.Environ(), writerDir+"="+dir)
		writer.Stderr = os.Stderr
		out, err := writer.StdoutPipe()
		must(t, err)
		must(t, writer.Start())
		lines := bufio.NewScanner(out)
		acknowledged := 0
		for lines.Scan() {
			acknowledged, err = strconv.Atoi(lines.Text())
			must(t, err)
			if acknowledged == 200+137*round {
				must(t, writer.Process.Kill())
			}
		}
		_ = writer.Wait()
		j, err := Open(dir, "")
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		content := load(t, j)
		must(t, j.Close())
		present := map[int32]bool{}
		for _, e := range content.Entries {
			present[e.GetAttempt()] = true
		}
		for i := 1; i <= acknowledged; i++ {
			if !present[int32(i)] {
				t.Fatalf("round %d: %d changes were acknowledged, %d is not there", round, acknowledged, i)
			}
		}
	}
}

// writeForEver acknowledges each durable change by a line with its number.
func writeForEver(dir string) {
	j, err := onDisk(directory(dir), "", 64<<10) // which is soon made anew, again and again
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	end := time.AfterFunc(time.Minute, func() { os.Exit(1) })
	defer end.Stop()
	inFlight := make(chan struct{}, 16)
	for i := int32(1); ; i++ {
		inFlight <- struct{}{}
		j.Write(nodes.JournalChange{Puts: []*recordv1.JournalEntry{entry("r.a.b", i, 1)}}, func(err error) {
			if err != nil {
				os.Exit(1)
			}
			fmt.Println(i)
			<-inFlight
		})
	}
}

// TestJournalFormatIsThatOfTheGoldenFile keeps what a released version wrote
// readable: in hexadecimal the changes with keys and values, a head, and a sector.
func TestJournalFormatIsThatOfTheGoldenFile(t *testing.T) {
	j := mustOpen(t, t.TempDir())
	code := int32(143)
	write(t, j, nodes.JournalChange{
		Meta: &recordv1.JournalMeta{Node: "n1", Uuid: "0e2", Generation: 2, Session: 40, BootId: "b", Epoch: 1, Cluster: "c"},
		Puts: []*recordv1.JournalEntry{{
			Run: "r.default.abc", Attempt: 2, Placement: 3, State: recordv1.JournalState_JOURNAL_STATE_EXITED, Sandbox: "e77",
			Commit: 41, Session: 40, BootId: "b", StartToken: []byte{1, 2}, SpecHash: []byte{3}, Driver: "process", AcceptedAt: 5,
			StartedAt: 6, StartedBoottimeNs: 7, TimeoutMs: 8, StopGraceMs: 9, StopCause: recordv1.StopCause_STOP_CAUSE_CANCEL,
			Exit:  &recordv1.Exit{Code: &code, Signal: 15, StartedAt: 6, At: 10, StopDelivered: true, StopCause: recordv1.StopCause_STOP_CAUSE_CANCEL, LogComplete: true, Source: "both"},
			Epoch: 1, AckedAtRevision: 44, TornDown: true, CpuMillis: 100, MemoryBytes: 1 << 20,
		}, {
			Run: "r.default.abd", Attempt: 1, Placement: 1, State: recordv1.JournalState_JOURNAL_STATE_VOID, Commit: 42,
			Void: &recordv1.Void{Reason: recordv1.Reason_REASON_IMAGE_NOT_FOUND, Message: "no such image", Permanent: true, At: 11},
		}},
	})
	var got strings.Builder
	load(t, j)
	must(t, j.log.each(j.log.head.start(), j.log.at, func(position uint64, changes []byte) error {
		return eachChange(changes, func(kind byte, key, value []byte) error {
			fmt.Fprintf(&got, "%d %d %x %x\n", position, kind, key, value)
			return nil
		})
	}))
	begin := head{id: "an id", salt: 1, sealed: 2}
	fmt.Fprintf(&got, "head %x\n", bytes.TrimRight(begin.bytes(), "\x00"))
	sectors, _ := appendSectors(nil, begin.start(), append([]byte{0, 0, 0, 0, 0, 0, 0, 7}, "changes"...))
	fmt.Fprintf(&got, "sector %x\n", sectors)
	path := filepath.Join("testdata", "format-3.txt")
	if *update {
		must(t, os.WriteFile(path, []byte(got.String()), 0o644))
	}
	want, err := os.ReadFile(path)
	must(t, err)
	if got.String() != string(want) {
		t.Errorf("format is\n%swant\n%s", got.String(), want)
	}
}

func must(t failer, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
