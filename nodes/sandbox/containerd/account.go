package containerd

import (
	"context"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/moby/sys/user"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
	"github.com/errand-run/errand/nodes/sandbox/containerd/images"
)

const (
	// accountsBytesMax bounds what is read of an image's passwd and group files.
	accountsBytesMax = 1 << 20
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
func (d *Driver) accountOf(ctx context.Context, words string, image images.Details, mounts []mount.Mount) (account, error) {
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
	err := mount.WithReadonlyTempMount(ctx, mounts, func(root string) error {
		found, unknown = lookUp(root, words)
		return nil
	})
	if err != nil {
		return account{}, sandbox.Transientf(recordv1.Reason_REASON_START_ERROR, "look up user %q in the image: %s", words, cause(err))
	}
	if unknown != nil {
		return account{}, sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "user %q is unknown in image %s", words, image.Name)
	}
	d.users.Store(key, found)
	return found, nil
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

// lookUp reads the image's own files. An image without them knows numbers only. The
// files are opened within the image: its links lead nowhere else.
func lookUp(rootPath, words string) (account, error) {
	root, err := os.OpenRoot(rootPath)
	if err != nil {
		return account{}, err
	}
	defer root.Close() //nolint:errcheck // read only
	open := func(name string) io.Reader {
		file, err := root.Open(name)
		if err != nil {
			return strings.NewReader("")
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil || !info.Mode().IsRegular() {
			return strings.NewReader("")
		}
		content, err := io.ReadAll(io.LimitReader(file, accountsBytesMax))
		if err != nil {
			return strings.NewReader("")
		}
		return strings.NewReader(string(content))
	}
	defaults := user.ExecUser{Home: "/"}
	name, _, _ := strings.Cut(words, ":")
	if uid, err := strconv.ParseUint(name, 10, 31); err == nil {
		// For a number without an entry: never root's group because none was named.
		defaults.Gid = int(uid)
	}
	found, err := user.GetExecUser(words, &defaults, open("etc/passwd"), open("etc/group"))
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
