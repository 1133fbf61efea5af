package boot

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAContainerdOfOurOwnIsNotStartedWhereItCouldMakeNoContainers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a,b")
	host := &sandboxHost{settings: settings{Config: Config{DataDir: dir, Containerd: ContainerdPrivate}}}
	_, err := host.containerdAddress(t.Context())
	if err == nil || !strings.Contains(err.Error(), `it has the character ','`) {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("something was begun: %v", err)
	}
}

// The contract's default: 64 MiB of an attempt in 4 files.
func TestLogOfAnAttemptIsFourFiles(t *testing.T) {
	config, err := Config{}.Complete()
	if err != nil {
		t.Fatal(err)
	}
	if logSegments != 4 || config.LogBytes/logSegments != 16<<20 {
		t.Errorf("a log is %d files of %d bytes", logSegments, config.LogBytes/logSegments)
	}
}
