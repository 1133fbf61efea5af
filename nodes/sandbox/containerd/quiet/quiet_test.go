package quiet_test

import (
	"bytes"
	"testing"

	"github.com/containerd/log"

	"github.com/errand-run/errand/nodes/sandbox/containerd/quiet"
)

func TestOnlyWhatHasTheContextIsQuiet(t *testing.T) {
	var written bytes.Buffer
	was := log.L.Logger.Out
	log.L.Logger.SetOutput(&written)
	defer log.L.Logger.SetOutput(was)
	ctx := quiet.Context(t.Context())
	log.G(ctx).WithField("key", "value").Error("quiet")
	log.G(ctx).Warnf("quiet")
	if written.Len() > 0 {
		t.Errorf("written: %s", &written)
	}
	log.G(t.Context()).Error("loud")
	if !bytes.Contains(written.Bytes(), []byte("loud")) {
		t.Error("another context is quiet too")
	}
}
