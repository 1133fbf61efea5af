package filter

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// filtersEnv makes this program one that puts itself under so many filters, says so,
// and waits for the end of its input.
const filtersEnv = "ERRAND_TEST_FILTERS"

func TestMain(m *testing.M) {
	if count, err := strconv.Atoi(os.Getenv(filtersEnv)); err == nil {
		for range count {
			takeOn(program)
		}
		_, _ = os.Stdout.WriteString("ready\n")
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// program refuses acct and lets the rest pass.
var program = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SYS_ACCT},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0x00050000 | uint32(unix.EPERM)},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0x7fff0000},
}

func takeOn(program []unix.SockFilter) {
	runtime.LockOSThread()
	list := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_ = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&list))); errno != 0 {
		panic(errno)
	}
}

// filtered starts a process under so many filters. end lets it end and says how.
func filtered(t *testing.T, count int) (pid int, end func() error) {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), filtersEnv+"="+strconv.Itoa(count))
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := output.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	return command.Process.Pid, func() error {
		return errors.Join(input.Close(), command.Wait())
	}
}

func TestReadReturnsTheProgramAndLetsTheProcessGoOn(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("reading a filter needs root")
		}
		t.Skip("reading a filter needs root")
	}
	pid, end := filtered(t, 1)
	want := unsafe.Slice((*byte)(unsafe.Pointer(&program[0])), len(program)*InstructionBytes)
	for range 3 {
		got, err := Read(pid)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("got %x, %v; want %x", got, err, want)
		}
	}
	if err := end(); err != nil {
		t.Errorf("afterwards the process ended with %v", err)
	}
}

func TestReadRefusesWhatIsNotOneWholeFilter(t *testing.T) {
	for name, count := range map[string]int{"no filter": 0, "two filters": 2} {
		t.Run(name, func(t *testing.T) {
			pid, end := filtered(t, count)
			if got, err := Read(pid); !errors.Is(err, ErrUnknown) {
				t.Errorf("got %x, %v", got, err)
			}
			if err := end(); err != nil {
				t.Errorf("afterwards the process ended with %v", err)
			}
		})
	}
	t.Run("no process", func(t *testing.T) {
		if got, err := Read(1 << 30); !errors.Is(err, ErrUnknown) {
			t.Errorf("got %x, %v", got, err)
		}
	})
}
