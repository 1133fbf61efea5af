package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// upMax is how long a peer may take until it takes commands; askPause is the time
	// between two questions whether it does.
	upMax    = 2 * time.Minute
	askPause = 50 * time.Millisecond
	// logTail is how much of a peer's log an error shows, in bytes.
	logTail = 400
	// peersPath is where a peer finds programs, whatever the environment says.
	peersPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// place is what one peer has while it is measured: a folder of its own, the ledger of
// its commands, and the processes that it makes. Its methods are for one goroutine.
type place struct {
	folder string
	ledger *ledger
	// grace is how long the peer may take to end.
	grace time.Duration

	keeper *exec.Cmd
	tell   io.WriteCloser
	said   bytes.Buffer
	ended  chan struct{} // closed when the keeper has ended
	failed error         // of the keeper itself, when ended is closed
}

func newPlace() (*place, error) {
	folder, err := os.MkdirTemp("", "errand-bench-")
	if err != nil {
		return nil, err
	}
	l, err := newLedger(filepath.Join(folder, "ledger"))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	return &place{folder: folder, ledger: l, grace: stopGrace}, nil
}

// run starts the peer's program. It inherits nothing of the environment, which could
// hold settings of its own or somebody's credentials.
func (at *place) run(program string, args ...string) error {
	log, err := os.OpenFile(at.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	at.keeper = &exec.Cmd{
		Path: "/proc/self/exe", Args: append([]string{keeperName, at.folder, at.grace.String(), program}, args...),
		Env:    []string{"PATH=" + peersPath, "HOME=" + at.folder, "TMPDIR=" + at.folder},
		Stdout: &at.said, Stderr: log,
		// A terminal's Ctrl-C is for the benchmark, which then stops the peer.
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if at.tell, err = at.keeper.StdinPipe(); err != nil {
		return err
	}
	if err := at.keeper.Start(); err != nil {
		return fmt.Errorf("start the keeper of %s: %w", program, err)
	}
	at.ended = make(chan struct{})
	go func() {
		defer close(at.ended)
		at.failed = at.keeper.Wait()
	}()
	return nil
}

func (at *place) log() string { return filepath.Join(at.folder, "log") }

// ports returns free ports on loopback.
func (at *place) ports(count int) (ports []int, err error) {
	for range count {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, listener.Close()) }() // only at the end, so that they differ
		address, ok := listener.Addr().(*net.TCPAddr)
		if !ok {
			return nil, fmt.Errorf("listened at %v", listener.Addr())
		}
		ports = append(ports, address.Port)
	}
	return ports, nil
}

// up waits until the peer takes commands, or is gone.
func (at *place) up(ctx context.Context, most time.Duration, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for {
		asked := ready(ctx)
		if asked == nil {
			return nil
		}
		select {
		case <-at.ended:
			return errors.New("it ended before it took commands")
		case <-ctx.Done():
			return fmt.Errorf("it did not take commands within %s: %w", most, asked)
		case <-time.After(askPause):
		}
	}
}

// spent is the processor time of the keeper and of all that is or was below it: whoever
// has ended was waited for, by its parent or by the keeper.
func (at *place) spent() (time.Duration, error) {
	keeper := at.keeper.Process.Pid
	spent, err := spentOf(keeper)
	if err != nil {
		return 0, err
	}
	below, err := descendants(keeper)
	for _, p := range below {
		if each, err := spentOf(p.pid); err == nil { // else it was just collected
			spent += each
		}
	}
	return spent, err
}

// tail is the end of the peer's log in one line.
func (at *place) tail() string {
	text, err := os.ReadFile(at.log())
	if err != nil {
		return ""
	}
	return strings.Join(strings.Fields(string(text[max(len(text)-logTail, 0):])), " ")
}

// close ends the peer and removes what it has made, and returns what it left behind as
// an error.
func (at *place) close() error {
	var errs []error
	if at.keeper != nil && at.ended != nil {
		fmt.Fprintln(at.tell, keeperDone)
		at.tell.Close()
		<-at.ended // its waits are bounded
		var said keeping
		if err := errors.Join(at.failed, json.Unmarshal(at.said.Bytes(), &said)); err != nil {
			errs = append(errs, fmt.Errorf("its keeper: %w", err))
		}
		errs = append(errs, said.err())
	}
	errs = append(errs, at.ledger.close(), removeFolder(at.folder))
	return errors.Join(errs...)
}

// removeFolder removes a folder and what is mounted in it: a peer may leave the file
// systems of its own sandboxes mounted when it ends.
func removeFolder(folder string) error {
	folder, err := filepath.EvalSymlinks(folder)
	if err != nil {
		return err
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	mounts := mountsBelow(string(text), folder)
	slices.Reverse(mounts) // the last came on top
	for _, mount := range mounts {
		if err := unix.Unmount(mount, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", mount, err)
		}
	}
	return os.RemoveAll(folder)
}

// mountsBelow finds the mounts within a folder, in the order of the kernel's table.
func mountsBelow(mountinfo, folder string) (mounts []string) {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if mount := unescape.Replace(fields[4]); strings.HasPrefix(mount, folder+"/") {
			mounts = append(mounts, mount)
		}
	}
	return mounts
}
