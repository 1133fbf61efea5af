package cli

import (
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// The exit codes of errand beside a command's own. docs/cli.md has the table
// and a test keeps the two alike.
const (
	ExitLeft          = 1   // errand node check found something that is left
	ExitUsage         = 2   // the command line or the request is wrong
	ExitTimedOut      = 124 // the run's timeout, or that of errand wait, passed
	ExitErrand        = 125 // errand, the node or the sandbox failed, not the command
	ExitNotExecutable = 126 // the command exists and can not be executed
	ExitNotFound      = 127 // the command does not exist
	ExitCanceled      = 130 // the run was canceled, or errand was interrupted
	ExitPipe          = 141 // nobody reads the output any more
)

// exitCodeOf maps a run that has ended to errand's exit code: 0 only for one
// that succeeded.
func exitCodeOf(run *errandv1.Run) int {
	switch run.GetStatus() {
	case errandv1.Status_STATUS_SUCCEEDED:
		return 0
	case errandv1.Status_STATUS_FAILED:
		return exitCodeOfFailed(run)
	case errandv1.Status_STATUS_TIMED_OUT:
		if run.GetReason() == errandv1.Reason_REASON_START_DEADLINE {
			return ExitErrand
		}
		return ExitTimedOut
	case errandv1.Status_STATUS_CANCELED:
		return ExitCanceled
	default:
		return ExitErrand
	}
}

func exitCodeOfFailed(run *errandv1.Run) int {
	if run.ExitCode != nil {
		// A code that the operating system would cut to 0 must not read as success.
		if code := run.GetExitCode(); code > 0 && code <= 255 {
			return int(code)
		}
		return ExitErrand
	}
	switch run.GetReason() {
	case errandv1.Reason_REASON_NOT_FOUND:
		return ExitNotFound
	case errandv1.Reason_REASON_NOT_EXECUTABLE:
		return ExitNotExecutable
	default:
		return ExitErrand
	}
}

// terminal tells whether a run has ended.
func terminal(status errandv1.Status) bool {
	switch status {
	case errandv1.Status_STATUS_SUCCEEDED, errandv1.Status_STATUS_FAILED, errandv1.Status_STATUS_TIMED_OUT,
		errandv1.Status_STATUS_CANCELED, errandv1.Status_STATUS_SKIPPED:
		return true
	default:
		return false
	}
}

// plainExit tells whether a run ended by its command's own exit, so that the
// exit code says it all.
func plainExit(run *errandv1.Run) bool {
	switch run.GetStatus() {
	case errandv1.Status_STATUS_SUCCEEDED:
		return true
	case errandv1.Status_STATUS_FAILED:
		return run.GetReason() == errandv1.Reason_REASON_EXIT_CODE && run.ExitCode != nil
	default:
		return false
	}
}
