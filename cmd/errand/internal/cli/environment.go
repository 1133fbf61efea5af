package cli

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"unicode/utf8"
)

// envFileBytesMax bounds an environment file. A node takes far less.
const envFileBytesMax = 16 << 20

// environment builds the command's environment: the files first, in order, then
// the --env flags. The later one wins. No error repeats a value.
func (a *app) environment(files, flags []string) (map[string]string, error) {
	env := make(map[string]string)
	for _, path := range files {
		content, err := readFile(path, envFileBytesMax)
		if err != nil {
			return nil, usage("--env-file %s: %s", path, reasonOf(err))
		}
		if err := a.readEnvFile(path, content, env); err != nil {
			return nil, err
		}
	}
	for _, text := range flags {
		name, value, ok := strings.Cut(text, "=")
		if err := checkEnvName(name); err != nil {
			return nil, usage("--env: %s", err)
		}
		if !ok {
			if value, ok = a.environ[name]; !ok {
				return nil, usage("--env %s: not set in your environment; write --env %s=VALUE to set it", name, name)
			}
		}
		if !validText(value) {
			return nil, usage("--env %s: the value holds a NUL character or is not valid UTF-8", name)
		}
		env[name] = value
	}
	return env, nil
}

// readEnvFile reads lines of NAME=VALUE, or NAME for the caller's own value.
// Empty lines and those that begin with # are left out; the value is taken as it
// is, quotes and spaces included.
func (a *app) readEnvFile(path string, content []byte, env map[string]string) error {
	content = bytes.TrimPrefix(content, []byte("\xef\xbb\xbf"))
	for number, line := range strings.Split(string(content), "\n") {
		line = strings.TrimSuffix(line, "\r")
		line = strings.TrimLeft(line, " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if err := checkEnvName(name); err != nil {
			return usage("--env-file %s, line %d: %s", path, number+1, err)
		}
		if !ok {
			if value, ok = a.environ[name]; !ok {
				return usage("--env-file %s, line %d: the line has no = and no variable of that name is set in your environment", path, number+1)
			}
		}
		if !validText(value) {
			return usage("--env-file %s, line %d: the value holds a NUL character or is not valid UTF-8", path, number+1)
		}
		env[name] = value
	}
	return nil
}

// checkEnvName refuses names that no process could read. The text is not
// repeated: a line without its = may well be a secret.
func checkEnvName(name string) error {
	switch {
	case name == "":
		return errors.New("a variable has no name: write it as NAME=VALUE")
	case !validText(name):
		return errors.New("a variable's name holds a NUL character or is not valid UTF-8")
	case strings.ContainsAny(name, " \t"):
		return errors.New("a variable's name has a space in it: write it as NAME=VALUE")
	}
	return nil
}

// validText tells whether the API, and a process, can take a text.
func validText(text string) bool {
	return utf8.ValidString(text) && strings.IndexByte(text, 0) < 0
}

func readFile(path string, limit int) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, int64(limit)+1))
	if err != nil {
		return nil, err
	}
	if len(content) > limit {
		return nil, errors.New("larger than " + bytesText(int64(limit)))
	}
	return content, nil
}
