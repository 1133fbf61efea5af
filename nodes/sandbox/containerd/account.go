package containerd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/moby/sys/user"
	"golang.org/x/sys/unix"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images"
)

const (
	// accountsBytesMax bounds what is read of an image's passwd and group files.
	accountsBytesMax = 1 << 20
	// usersMax bounds how many users are known without a look at their images.
	usersMax = 4096
	// UserBytesMax bounds the text that names a user.
	UserBytesMax = 256
)

// account is whom a command runs as.
type account struct {
	uid, gid uint32
	groups   []uint32
	home     string
}

// userKey names a resolution: the same words mean the same in the same layers.
type userKey struct{ chain, words string }

// accountOf resolves "uid", "uid:gid", "name" or "name:group" in the image, as docker
// does, but that a uid of no entry without a group gets the gid of the same number.
// Where the words are two numbers the image is not looked at.
func (d *Driver) accountOf(id, words string, image images.Details, mounts []mount.Mount) (account, error) {
	if len(words) > UserBytesMax || strings.ContainsAny(words, "\x00\n") {
		return account{}, sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "the user is not a name or number of at most %d bytes", UserBytesMax)
	}
	if known, ok := numeric(words); ok {
		return known, nil
	}
	key := userKey{image.ChainID, words}
	if known, ok := d.users.Load(key); ok {
		return known.(account), nil
	}
	var found account
	var unknown error
	err := d.withImage(id, mounts, func(root string) { found, unknown = lookUp(root, words) })
	if err != nil {
		return account{}, sandbox.Transientf(recordv1.Reason_REASON_START_ERROR, "look up user %q in the image: %s", words, cause(err))
	}
	var unfit *unfitError
	if errors.As(unknown, &unfit) {
		return account{}, sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "look up user %q in image %s: %s", words, image.Name, unfit)
	}
	if unknown != nil {
		return account{}, sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "user %q is unknown in image %s", words, image.Name)
	}
	if d.usersKnown.Add(1) > usersMax {
		d.users.Clear()
		d.usersKnown.Store(1)
	}
	d.users.Store(key, found)
	return found, nil
}

// imageDir is where, in a sandbox's directory, its files are looked at before they are
// its root.
const imageDir = "image"

// withImage shows the files of a sandbox that was not created yet, to be read only. What
// a crash leaves mounted goes with the sandbox: see leaveImage.
func (d *Driver) withImage(id string, mounts []mount.Mount, look func(root string)) (err error) {
	at := filepath.Join(d.dir(id), imageDir)
	if err := os.Mkdir(at, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	defer func() { err = errors.Join(err, d.leaveImage(id)) }()
	if err := mount.All(readOnly(mounts), at); err != nil {
		return err
	}
	look(at)
	return nil
}

// leaveImage ends what withImage has begun, of an earlier daemon too.
func (d *Driver) leaveImage(id string) error {
	at := filepath.Join(d.dir(id), imageDir)
	if _, err := os.Lstat(at); err != nil {
		return nil //nolint:nilerr // as it should be
	}
	if err := mount.UnmountAll(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return err
	}
	return os.Remove(at)
}

// readOnly makes mounts of a writable layer ones that change nothing. What they show is
// somebody else's: none of its devices can be opened.
func readOnly(mounts []mount.Mount) []mount.Mount {
	result := make([]mount.Mount, 0, len(mounts))
	for _, m := range mounts {
		var options []string
		upper := ""
		for _, option := range m.Options {
			name, value, _ := strings.Cut(option, "=")
			switch {
			case name == "upperdir":
				upper = value
			case name == "workdir" || option == "rw" || option == "ro":
			default:
				options = append(options, option)
			}
		}
		for i, option := range options {
			if lower, ok := strings.CutPrefix(option, "lowerdir="); ok && upper != "" {
				options[i] = "lowerdir=" + upper + ":" + lower
			}
		}
		m.Options = append(options, "ro", "nodev", "noexec", "nosuid")
		result = append(result, m)
	}
	return result
}

// numeric resolves what needs no look at the image: nothing, "0", and "uid:gid".
func numeric(words string) (account, bool) {
	if words == "" || words == "0" {
		return account{home: "/root"}, true
	}
	left, right, ok := strings.Cut(words, ":")
	if !ok {
		return account{}, false
	}
	uid, err1 := strconv.ParseUint(left, 10, 31)
	gid, err2 := strconv.ParseUint(right, 10, 31)
	if err1 != nil || err2 != nil {
		return account{}, false
	}
	home := "/"
	if uid == 0 {
		home = "/root"
	}
	return account{uid: uint32(uid), gid: uint32(gid), home: home}, true
}

// unfitError says why a file of an image is not read for what it should be.
type unfitError struct{ name, why string }

func (e *unfitError) Error() string { return "/" + e.name + " " + e.why }

// readAccounts reads one of the image's files, within the image: its links lead nowhere
// else. One that is not there is empty. What is no file is not opened: a device may do
// something then, and a pipe would never answer.
func readAccounts(root *os.Root, name string) (io.Reader, error) {
	empty := strings.NewReader("")
	info, err := root.Stat(name)
	if err != nil {
		return empty, nil //nolint:nilerr // as if it were not there
	}
	switch {
	case !info.Mode().IsRegular():
		return empty, &unfitError{name, "is not a file"}
	case info.Size() > accountsBytesMax:
		return empty, &unfitError{name, fmt.Sprintf("has %d bytes, more than %d", info.Size(), accountsBytesMax)}
	}
	file, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return empty, nil //nolint:nilerr // as if it were not there
	}
	defer file.Close()
	// In a sandbox that runs it may have been put in the place of a file just now.
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return empty, &unfitError{name, "is not a file"}
	}
	content, err := io.ReadAll(io.LimitReader(file, accountsBytesMax))
	if err != nil {
		return empty, &unfitError{name, "can not be read: " + sandbox.Cause(err)}
	}
	return bytes.NewReader(content), nil
}

// lookUp reads the image's own files. An image without them knows numbers only.
func lookUp(rootPath, words string) (account, error) {
	root, err := os.OpenRoot(rootPath)
	if err != nil {
		return account{}, err
	}
	defer root.Close() //nolint:errcheck // read only
	passwd, err := readAccounts(root, "etc/passwd")
	if err != nil {
		return account{}, err
	}
	group, err := readAccounts(root, "etc/group")
	if err != nil {
		return account{}, err
	}
	defaults := user.ExecUser{Home: "/"}
	name, _, _ := strings.Cut(words, ":")
	if uid, err := strconv.ParseUint(name, 10, 31); err == nil {
		// For a number without an entry: never root's group because none was named.
		defaults.Gid = int(uid)
	}
	found, err := user.GetExecUser(words, &defaults, passwd, group)
	if err != nil {
		return account{}, err
	}
	a := account{uid: uint32(found.Uid), gid: uint32(found.Gid), home: found.Home} //nolint:gosec // checked by GetExecUser
	for _, gid := range found.Sgids {
		a.groups = append(a.groups, uint32(gid)) //nolint:gosec // checked by GetExecUser
	}
	if a.home == "" {
		a.home = "/"
	}
	return a, nil
}
