package input

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// holding is a process that holds files as the descriptors of its input; nil for none.
func holding(t *testing.T, data, control *os.File) (pid int) {
	t.Helper()
	const firstExtra = 3
	command := exec.Command("sleep", "60")
	command.ExtraFiles = make([]*os.File, ControlFD-firstExtra+1)
	command.ExtraFiles[FD-firstExtra], command.ExtraFiles[ControlFD-firstExtra] = data, control
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	return command.Process.Pid
}

// What a command has put in the place of its parent's pipe is not opened: a file would
// be written to, and the opening of a device does something.
func TestOpenTakesNothingButAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	socket, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for name, open := range map[string]func() (*os.File, error){
		"none":     func() (*os.File, error) { return nil, nil },
		"a file":   func() (*os.File, error) { return os.Create(path) },
		"a device": func() (*os.File, error) { return os.OpenFile("/dev/null", os.O_RDWR, 0) },
		"a folder": func() (*os.File, error) { return os.Open(t.TempDir()) },
		"a socket": func() (*os.File, error) { return os.NewFile(uintptr(socket[0]), "socket"), nil },
	} {
		t.Run(name, func(t *testing.T) {
			file, err := open()
			if err != nil {
				t.Fatal(err)
			}
			if file != nil {
				defer file.Close()
			}
			reader, pipe, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer reader.Close()
			defer pipe.Close()
			for _, pid := range []int{holding(t, file, pipe), holding(t, pipe, file)} {
				writer, err := Open(pid)
				if !errors.Is(err, ErrNone) {
					t.Errorf("%v, %v", writer, err)
				}
				if writer != nil {
					_ = writer.Close()
				}
			}
		})
	}
	_ = unix.Close(socket[1])
}

func TestFramesComeOutOfThePipesOfAProcess(t *testing.T) {
	var readers, held [2]*os.File
	for i := range readers {
		var err error
		if readers[i], held[i], err = os.Pipe(); err != nil {
			t.Fatal(err)
		}
		defer readers[i].Close()
	}
	pid := holding(t, held[0], held[1])
	for _, pipe := range held { // the process has its own
		if err := pipe.Close(); err != nil {
			t.Fatal(err)
		}
	}
	writer, err := Open(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	sent := make([]byte, DataMax+1)
	for i := range sent {
		sent[i] = byte(i)
	}
	if n, err := writer.Write(sent); n != len(sent) || err != nil {
		t.Fatalf("%d of %d bytes, %v", n, len(sent), err)
	}
	for _, err := range []error{writer.Resize(50, 132), writer.Signal(2), writer.End()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	buffer := make([]byte, DataMax)
	for _, want := range []struct {
		pipe int
		kind Kind
		data string
	}{
		{1, KindSize, "\x32\x00\x84\x00"},
		{1, KindSignal, "\x02"},
		{0, KindData, string(sent[:DataMax])},
		{0, KindData, string(sent[DataMax:])},
		{0, KindEnd, ""},
	} {
		if kind, data, err := Read(readers[want.pipe], buffer); err != nil || kind != want.kind || string(data) != want.data {
			t.Errorf("frame of kind %d with %d bytes, %v; want kind %d with %d", kind, len(data), err, want.kind, len(want.data))
		}
	}
	if rows, columns, ok := SizeOf([]byte("\x32\x00\x84\x00")); rows != 50 || columns != 132 || !ok {
		t.Errorf("size %d by %d, %v", rows, columns, ok)
	}
}
