package containerd

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

const secret = "s3cr3t-marker-0123456789"

func TestCheckCommandRefusesWhatTheKernelWould(t *testing.T) {
	many := make([]string, 40)
	for i := range many {
		many[i] = "V" + strings.Repeat("X", i) + "=" + strings.Repeat(secret, 2500)
	}
	cases := []struct {
		name string
		args []string
		env  []string
		say  string
	}{
		{name: "no command", say: "no command"},
		{name: "a NUL in an argument", args: []string{"a\x00" + secret}, say: "argument 0"},
		{name: "a long argument", args: []string{"a", strings.Repeat(secret, 6000)}, say: "argument 1"},
		{name: "a NUL in a value", args: []string{"a"}, env: []string{"KEY=" + secret + "\x00"}, say: `"KEY" holds a NUL`},
		{name: "a long value", args: []string{"a"}, env: []string{"KEY=" + strings.Repeat(secret, 6000)}, say: `"KEY" has 144004 bytes`},
		{name: "no equals sign", args: []string{"a"}, env: []string{secret}, say: "entry 0"},
		{name: "no name", args: []string{"a"}, env: []string{"=" + secret}, say: "entry 0"},
		{name: "too much in all", args: []string{"a"}, env: many, say: "command and environment have"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			err := checkCommand(tc.args, tc.env)
			var refused *sandbox.StartError
			if !errors.As(err, &refused) || !refused.Permanent || refused.Reason != recordv1.Reason_REASON_START_ERROR || !strings.Contains(err.Error(), tc.say) {
				t.Errorf("got %v", err)
			}
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("the value is told: %v", err)
			}
		})
	}
	if err := checkCommand([]string{"a", ""}, []string{"A=", "B=x=y", "C=" + strings.Repeat("x", ArgumentBytesMax-3)}); err != nil {
		t.Errorf("what the kernel takes is refused: %v", err)
	}
}

func TestCauseTellsKnownPhrasesOnly(t *testing.T) {
	got := cause(errors.New(`runc: env "KEY=` + secret + `": write: No space left on device`))
	if got != "no space left on device" {
		t.Errorf("got %q", got)
	}
	if got := cause(errors.New(secret)); strings.Contains(got, secret) {
		t.Errorf("got %q", got)
	}
	err := filtered(errors.New(secret), "create", "e1")
	for ; err != nil; err = errors.Unwrap(err) {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("it is found by unwrapping: %v", err)
		}
	}
}

func TestStartErrorOfAnImageThatNoTryCanHelpIsPermanent(t *testing.T) {
	runc := errors.New(`runc create failed: unable to start container process: env "KEY=` + secret + `": error mounting "proc" to rootfs at "/proc": filesystem "proc" must be mounted on ordinary directory`)
	var start *sandbox.StartError
	if err := startError("e1", filtered(runc, "create", "e1")); !errors.As(err, &start) || !start.Permanent || start.Message != "/proc or /sys of the image is not a directory" {
		t.Errorf("got %v", err)
	}
	if err := startError("e1", filtered(errors.New("mkdir /x: not a directory"), "create", "e1")); !errors.As(err, &start) || start.Permanent || !strings.Contains(start.Message, "not a directory") {
		t.Errorf("got %v", err)
	}
}

func TestMergeEnvironmentLaysTheRunOverTheImage(t *testing.T) {
	got := mergeEnvironment([]string{"A=image", "B=image", "PATH=/image"}, []string{"B=run", "C=run"}, "/home")
	want := []string{"A=image", "B=run", "PATH=/image", "C=run", "HOME=/home"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q", got)
	}
	if got := mergeEnvironment(nil, []string{"HOME=/mine"}, "/home"); !reflect.DeepEqual(got, []string{"HOME=/mine", defaultPath}) {
		t.Errorf("got %q", got)
	}
}

func TestArgumentsOfPrefersTheRunsCommand(t *testing.T) {
	if got := argumentsOf([]string{"a"}, []string{"b"}, []string{"c"}); !reflect.DeepEqual(got, []string{"a"}) {
		t.Errorf("got %q", got)
	}
	if got := argumentsOf(nil, []string{"b"}, []string{"c"}); !reflect.DeepEqual(got, []string{"b", "c"}) {
		t.Errorf("got %q", got)
	}
}

func TestWorkingDirOfRefusesARelativePath(t *testing.T) {
	if got, err := workingDirOf("", "/image/../x"); got != "/x" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	for _, dir := range []string{"relative", "/a\x00b", "/" + strings.Repeat("x", 5000)} {
		if _, err := workingDirOf(dir, ""); err == nil {
			t.Errorf("%.20q is taken", dir)
		}
	}
}

func TestLookUpStaysWithinTheImage(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(root, "etc", "passwd")); err != nil {
		t.Fatal(err)
	}
	if got, err := lookUp(root, "daemon"); err == nil {
		t.Errorf("the host's accounts are used: %+v", got)
	}
}

// A pipe would never answer, and whoever opens a device may set something going.
func TestLookUpOpensOnlyFiles(t *testing.T) {
	for _, c := range []struct {
		name, why string
		make      func(path string) error
	}{
		{"pipe", "is not a file", func(path string) error { return unix.Mkfifo(path, 0o644) }},
		{"device", "is not a file", func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o644, int(unix.Mkdev(1, 3))) }},
		{"directory", "is not a file", func(path string) error { return os.Mkdir(path, 0o755) }},
		{"huge file", "has 1048577 bytes, more than 1048576", func(path string) error {
			return os.WriteFile(path, bytes.Repeat([]byte("#"), accountsBytesMax+1), 0o644)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"passwd", "group"} {
				if err := c.make(filepath.Join(root, "etc", name)); err != nil {
					t.Fatal(err)
				}
			}
			watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(watch)
			if _, err := unix.InotifyAddWatch(watch, filepath.Join(root, "etc/passwd"), unix.IN_OPEN); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, err := lookUp(root, "daemon")
				if err == nil || !strings.Contains(err.Error(), "/etc/passwd "+c.why) {
					t.Errorf("got %v", err)
				}
			}()
			select {
			case <-ended:
			case <-time.After(2 * time.Minute):
				t.Fatal("it hangs")
			}
			if n, err := unix.Read(watch, make([]byte, 4096)); !errors.Is(err, unix.EAGAIN) {
				t.Errorf("it was opened: %d, %v", n, err)
			}
		})
	}
}

// A daemon that dies while it looks leaves a mount, which goes with the sandbox.
func TestSandboxWhoseImageIsStillLookedAtIsRemoved(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	spec := b.spec("true")
	if err := b.d.makeDir(spec.ID, newNote(spec, "true")); err != nil {
		t.Fatal(err)
	}
	lower := t.TempDir()
	at := filepath.Join(b.d.dir(spec.ID), imageDir)
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	mounts := []mount.Mount{{Type: "bind", Source: lower, Options: []string{"rbind", "rw"}}}
	if err := mount.All(readOnly(mounts), at); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(at, "file"), nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("what is looked at can be written: %v", err)
	}
	if err := b.d.Remove(within(t), spec.ID); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(b.d.config.Dir); err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

func TestNoMoreUsersAreRememberedThanTheirBound(t *testing.T) {
	b := setUp(t)
	defer b.finish()
	image, err := b.d.store.Describe(within(t), testImage)
	if err != nil {
		t.Fatal(err)
	}
	b.d.usersKnown.Store(usersMax - 1)
	b.d.users.Store(userKey{"chain", "somebody"}, account{})
	spec := b.spec("true")
	if err := b.d.makeDir(spec.ID, newNote(spec, "true")); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.d.Remove(within(t), spec.ID); err != nil {
			t.Error(err)
		}
	}()
	mounts := []mount.Mount{{Type: "bind", Source: t.TempDir(), Options: []string{"rbind", "ro"}}}
	for i, words := range []string{"17", "18"} {
		if _, err := b.d.accountOf(spec.ID, words, image, mounts); err != nil {
			t.Fatal(err)
		}
		if _, ok := b.d.users.Load(userKey{"chain", "somebody"}); ok != (i == 0) {
			t.Errorf("after user %s an earlier one is remembered: %t", words, ok)
		}
	}
	if _, ok := b.d.users.Load(userKey{image.ChainID, "18"}); !ok {
		t.Error("the last one is not remembered")
	}
}

func TestReadOnlyShowsTheWritableLayerAboveTheOthers(t *testing.T) {
	got := readOnly([]mount.Mount{{Type: "overlay", Source: "overlay", Options: []string{"index=off", "workdir=/w", "upperdir=/u", "lowerdir=/a:/b"}}})
	want := []string{"index=off", "lowerdir=/u:/a:/b", "ro", "nodev", "noexec", "nosuid"}
	if !reflect.DeepEqual(got[0].Options, want) {
		t.Errorf("got %v, want %v", got[0].Options, want)
	}
}

func TestLookUpFindsGroupsAndHome(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"passwd": "me:x:7:8::/home/me:/bin/sh\n", "group": "own:x:8:\nother:x:9:me\n"} {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cases := map[string]account{
		"me":       {uid: 7, gid: 8, groups: []uint32{9}, home: "/home/me"},
		"7":        {uid: 7, gid: 8, groups: []uint32{9}, home: "/home/me"},
		"me:other": {uid: 7, gid: 9, home: "/home/me"},
		"12":       {uid: 12, gid: 12, home: "/"},
		"12:other": {uid: 12, gid: 9, home: "/"},
	}
	for words, want := range cases {
		got, err := lookUp(root, words)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q is %+v, %v; not %+v", words, got, err, want)
		}
	}
	if _, err := lookUp(root, "nobody-there"); err == nil {
		t.Error("an unknown user is known")
	}
}
