package containerd

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"

	recordv1 "github.com/errand-run/errand/messages/errand/record/v1"
	"github.com/errand-run/errand/nodes/sandbox"
)

const (
	// ArgumentBytesMax is the kernel's bound on one argument or one environment entry
	// (MAX_ARG_STRLEN), its closing zero included.
	ArgumentBytesMax = 128 << 10
	// ArgumentsBytesMax bounds arguments and environment together. The kernel's bound
	// is a quarter of the stack's limit, 2 MiB by default; the rest is left for what
	// init and the kernel add.
	ArgumentsBytesMax = 2<<20 - 64<<10
	// pointerBytes is what the kernel counts per string beside its bytes.
	pointerBytes = 8

	defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// checkCommand refuses a command that could never be executed: the runtime would
// say so with a text that quotes the environment, or not at all. Its errors name
// places and never values.
func checkCommand(args, env []string) error {
	if len(args) == 0 {
		return sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "no command: neither the run nor the image names one")
	}
	total := 0
	for i, arg := range args {
		if strings.IndexByte(arg, 0) >= 0 {
			return sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "argument %d of the command holds a NUL byte", i)
		}
		if len(arg) >= ArgumentBytesMax {
			return sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "argument %d of the command has %d bytes; %d is the most", i, len(arg), ArgumentBytesMax-1)
		}
		total += len(arg) + 1 + pointerBytes
	}
	for i, entry := range env {
		name, _, ok := strings.Cut(entry, "=")
		if !ok || name == "" || strings.IndexByte(name, 0) >= 0 {
			return sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "environment entry %d is not NAME=value", i)
		}
		if strings.IndexByte(entry, 0) >= 0 {
			return sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "environment variable %.64q holds a NUL byte", name)
		}
		if len(entry) >= ArgumentBytesMax {
			return sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "environment variable %.64q has %d bytes; %d is the most", name, len(entry), ArgumentBytesMax-1)
		}
		total += len(entry) + 1 + pointerBytes
	}
	if total > ArgumentsBytesMax {
		return sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "command and environment have %d bytes; %d is the most", total, ArgumentsBytesMax)
	}
	return nil
}

// mergeEnvironment lays the run's variables over the image's. HOME and PATH get a
// value when neither has one.
func mergeEnvironment(image, run []string, home string) []string {
	merged := make([]string, 0, len(image)+len(run)+2)
	index := make(map[string]int, len(image)+len(run)+2)
	add := func(entry string, override bool) {
		name, _, _ := strings.Cut(entry, "=")
		at, known := index[name]
		switch {
		case !known:
			index[name] = len(merged)
			merged = append(merged, entry)
		case override:
			merged[at] = entry
		}
	}
	for _, entry := range image {
		add(entry, true)
	}
	for _, entry := range run {
		add(entry, true)
	}
	add(defaultPath, false)
	add("HOME="+home, false)
	return merged
}

// argumentsOf returns the command to run: the run's, else the image's own.
func argumentsOf(command, entrypoint, cmd []string) []string {
	if len(command) > 0 {
		return command
	}
	return append(append(make([]string, 0, len(entrypoint)+len(cmd)), entrypoint...), cmd...)
}

// workingDirOf returns the directory to run in, cleaned.
func workingDirOf(run, image string) (string, error) {
	dir := run
	if dir == "" {
		dir = image
	}
	if dir == "" {
		dir = "/"
	}
	if !path.IsAbs(dir) || strings.IndexByte(dir, 0) >= 0 || len(dir) >= unix.PathMax {
		return "", sandbox.Permanentf(recordv1.Reason_REASON_START_ERROR, "the working directory is not an absolute path of less than %d bytes", unix.PathMax)
	}
	return path.Clean(dir), nil
}
