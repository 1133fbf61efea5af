package private

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"

	"github.com/BurntSushi/toml"
	"go.uber.org/zap"
)

const (
	// SocketBytesMax bounds a socket's path: containerd 1.6 refuses more than 104 bytes,
	// and adds ".ttrpc" for its second socket.
	SocketBytesMax = 98
	// shortSocketDir holds the sockets of nodes whose own directory's path is too
	// long for one.
	shortSocketDir = "/run/errand"
	// DefaultOOMScore keeps the kernel from choosing containerd, and the shims that
	// inherit from it, before any sandbox.
	DefaultOOMScore = -999
)

// Config says where a private containerd lives and how it is run.
type Config struct {
	// Dir is the directory of the node that holds everything of it. Its root, with
	// images and snapshots, must be on a file system that overlayfs accepts.
	Dir string
	// Binary is the containerd to run: a path or a name in PATH. Default "containerd".
	Binary string
	// OOMScore is containerd's oom_score_adj. Default DefaultOOMScore.
	OOMScore int
	// Log hears of starts, deaths and restarts. containerd's own log is a file.
	// Default: nobody.
	Log *zap.Logger
}

// paths are the places of one private containerd.
type paths struct {
	root, state, config, log, pid, socket string
}

// places derives the places from the directory, the same ones every time: that is
// how the next daemon finds them.
func places(dir string) paths {
	p := paths{
		root:   filepath.Join(dir, "root"),
		state:  filepath.Join(dir, "state"),
		config: filepath.Join(dir, "config.toml"),
		log:    filepath.Join(dir, "containerd.log"),
		pid:    filepath.Join(dir, "containerd.pid"),
		socket: filepath.Join(dir, "containerd.sock"),
	}
	if len(p.socket) > SocketBytesMax {
		sum := sha256.Sum256([]byte(dir))
		p.socket = filepath.Join(shortSocketDir, "containerd-"+hex.EncodeToString(sum[:8])+".sock")
	}
	return p
}

// At returns the places of the private containerd that a directory is of, running or not;
// ok is false where none has ever been. What a caller compares with the command lines of
// shims has to be as it was given to Start: absolute.
func At(dir string) (address, stateDir, rootDir string, ok bool) {
	p := places(dir)
	_, err := os.Stat(p.config)
	return p.socket, p.state, p.root, err == nil
}

// disabledPlugins are those that a node never uses. A version of containerd that
// lacks one ignores its name.
var disabledPlugins = []string{
	"io.containerd.grpc.v1.cri",
	"io.containerd.cri.v1.images",
	"io.containerd.cri.v1.runtime",
	"io.containerd.podsandbox.controller.v1.podsandbox",
	"io.containerd.tracing.processor.v1.otlp",
	"io.containerd.nri.v1.nri",
	"io.containerd.snapshotter.v1.aufs",
	"io.containerd.snapshotter.v1.blockfile",
	"io.containerd.snapshotter.v1.btrfs",
	"io.containerd.snapshotter.v1.devmapper",
	"io.containerd.snapshotter.v1.zfs",
}

// configuration renders containerd's own configuration file. Version 2 of the
// format is read by containerd 1.6 and by 2.x.
func configuration(p paths, oomScore int) ([]byte, error) {
	type grpc struct {
		Address string `toml:"address"`
	}
	type debug struct {
		Level string `toml:"level"`
	}
	var out bytes.Buffer
	err := toml.NewEncoder(&out).Encode(struct {
		Version         int      `toml:"version"`
		Root            string   `toml:"root"`
		State           string   `toml:"state"`
		OOMScore        int      `toml:"oom_score"`
		DisabledPlugins []string `toml:"disabled_plugins"`
		GRPC            grpc     `toml:"grpc"`
		Debug           debug    `toml:"debug"`
	}{2, p.root, p.state, oomScore, disabledPlugins, grpc{p.socket}, debug{"warn"}})
	if err != nil {
		return nil, fmt.Errorf("render containerd's configuration: %w", err)
	}
	return out.Bytes(), nil
}

// prepare makes the directories, for root alone, and writes the configuration.
func prepare(p paths, oomScore int) error {
	for _, dir := range []string{filepath.Dir(p.config), p.root, p.state, filepath.Dir(p.socket)} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("prepare a private containerd: %w", err)
		}
	}
	content, err := configuration(p, oomScore)
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.config, content, 0o600); err != nil {
		return fmt.Errorf("prepare a private containerd: %w", err)
	}
	return nil
}
