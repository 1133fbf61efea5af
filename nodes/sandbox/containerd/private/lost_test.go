package private

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
)

func TestContainerdThatNoPidFileNamesIsAdopted(t *testing.T) {
	need(t)
	dir := t.TempDir()
	first := begin(t, dir)
	pid := pidOf(t, first)
	if err := first.Leave(shortly(t)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(first.paths.pid); err != nil {
		t.Fatal(err)
	}
	if !Left(dir) || len(LostOf(dir)) > 0 {
		t.Errorf("one that works on its files is left: %v, lost: %v", Left(dir), LostOf(dir))
	}
	second := begin(t, dir)
	if noted, ok := noted(second.paths); !ok || noted != pid {
		t.Errorf("the pid file has %d, %v; want %d", noted, ok, pid)
	}
	if got := pidOf(t, second); got != pid {
		t.Errorf("the second daemon's containerd has pid %d, not %d", got, pid)
	}
}

func TestContainerdsOfOtherDirectoriesAreNotLost(t *testing.T) {
	need(t)
	base := t.TempDir()
	dir, other := filepath.Join(base, "a", "containerd"), filepath.Join(base, "b", "containerd")
	first, beside := begin(t, dir), begin(t, other)
	pid, pidBeside := pidOf(t, first), pidOf(t, beside)
	if err := first.Leave(shortly(t)); err != nil {
		t.Fatal(err)
	}
	if lost := LostOf(dir); len(lost) > 0 {
		t.Errorf("with its files it is lost: %+v", lost)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	lost := LostOf(dir)
	if len(lost) != 1 || lost[0].PID != pid || !lost[0].Deleted || lost[0].Root != first.paths.root || lost[0].Shims != 0 {
		t.Errorf("without its files it is %+v; want %d", lost, pid)
	}
	for _, elsewhere := range []string{other, filepath.Join(base, "c", "containerd"), filepath.Join(base, "a", "else")} {
		if err := EndLost(shortly(t), elsewhere, true, zap.NewNop()); err != nil || len(LostOf(elsewhere)) > 0 {
			t.Errorf("%s has lost %+v, %v", elsewhere, LostOf(elsewhere), err)
		}
	}
	if lost := LostOf(dir); len(lost) != 1 {
		t.Errorf("it was ended for another directory: %+v", lost)
	}
	if err := EndLost(shortly(t), dir, false, zap.NewNop()); err != nil || len(LostOf(dir)) > 0 {
		t.Errorf("one without containers is not ended: %+v, %v", LostOf(dir), err)
	}
	if got := pidOf(t, beside); got != pidBeside || answers(shortly(t), beside.Address()) != nil {
		t.Errorf("the containerd of another directory was %d and is %d", pidBeside, got)
	}
}

func TestContainerdWhoseFilesWereMovedIsEndedByAnAcceptedLossOnly(t *testing.T) {
	need(t)
	base := t.TempDir()
	dir, there := filepath.Join(base, "data", "containerd"), filepath.Join(base, "moved")
	first := begin(t, dir)
	pid := pidOf(t, first)
	if err := first.Leave(shortly(t)); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, there); err != nil {
		t.Fatal(err)
	}
	if err := EndLost(shortly(t), dir, false, zap.NewNop()); err != nil {
		t.Error(err)
	}
	lost := LostOf(dir)
	if len(lost) != 1 || lost[0].PID != pid || lost[0].Deleted || !strings.HasPrefix(lost[0].Root, there+"/") {
		t.Fatalf("it is %+v; want %d, at work in %s", lost, pid, there)
	}
	if err := EndLost(shortly(t), dir, true, zap.NewNop()); err != nil || len(LostOf(dir)) > 0 {
		t.Errorf("by the accepted loss it is not ended: %+v, %v", LostOf(dir), err)
	}
}
