package fence

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// Harden makes this process one that goes on when the machine is in trouble, as far as
// it may: it is not chosen when memory runs out, is not paged out, comes before other
// processes, and does not end because nobody reads its log any more. What could not be
// had is the error; a guard works without it.
func Harden() error {
	signal.Ignore(syscall.SIGPIPE)
	var problems []error
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0); err != nil {
		problems = append(problems, fmt.Errorf("keep from the out-of-memory killer: %w", err))
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, -20); err != nil {
		problems = append(problems, fmt.Errorf("raise priority: %w", err))
	}
	// On fault: what is never touched needs no memory.
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		problems = append(problems, fmt.Errorf("keep in memory: %w", err))
	}
	return errors.Join(problems...)
}
