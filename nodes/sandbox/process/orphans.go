package process

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/guest/pid"
)

// killOrphans kills what a command has started, once its supervisor was lost without a
// PID namespace that would take it along: the kernel kills the command only. It goes by
// the run in their environment, which nothing but a child that drops it is without. It
// tells whether there was any.
func (d *Driver) killOrphans(x *box, deadline time.Time) (leftover bool) {
	if d.isolate {
		return false
	}
	// Twice none, for one may have forked while the others were looked at.
	for none := 0; none < 2 && time.Now().Before(deadline); none++ {
		if !killOf(x.meta.Info) {
			continue
		}
		leftover, none = true, -1
		select {
		case <-d.closing:
			return leftover
		case <-time.After(time.Millisecond):
		}
	}
	return leftover
}

// killOf kills every process of an attempt that may be looked at.
func killOf(info sandbox.Info) (found bool) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return false
	}
	run := []byte("\x00" + sandbox.EnvRunID + "=" + info.Run + "\x00")
	attempt := []byte("\x00" + sandbox.EnvAttempt + "=" + strconv.Itoa(int(info.Attempt)) + "\x00")
	for _, entry := range entries {
		number, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		// The name comes first: what is read later is not another process's.
		ref, err := pid.Of(number)
		if err != nil || !ref.Alive() {
			continue
		}
		environ, err := os.ReadFile("/proc/" + entry.Name() + "/environ")
		environ = append([]byte{0}, environ...)
		if err != nil || !bytes.Contains(environ, run) || !bytes.Contains(environ, attempt) {
			continue
		}
		found = ref.Signal(unix.SIGKILL) == nil || found
	}
	return found
}
