package cli

import (
	"strings"

	"github.com/spf13/cobra"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// retryFlags say what of a run is tried again.
type retryFlags struct {
	retries    int32
	only       []string
	never      []string
	backoff    durationValue
	backoffMax durationValue
}

// retryDetails are the flags that mean nothing without --retries.
var retryDetails = []string{"retry-only", "retry-never", "backoff", "backoff-max"}

// register declares the flags.
func (r *retryFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Int32Var(&r.retries, "retries", 0, "with -d, how many attempts may follow a first that failed")
	f.StringSliceVar(&r.only, "retry-only", nil, "the failures that are tried again, as in 75,100-110,signal,oom,timeout (default all)")
	f.StringSliceVar(&r.never, "retry-never", nil, "the failures that are not, in the same words")
	f.Var(&r.backoff, "backoff", "the wait before the second attempt; it doubles with each (default 10s)")
	f.Var(&r.backoffMax, "backoff-max", "what the wait grows to (default 5m)")
	for _, name := range append([]string{"retries"}, retryDetails...) {
		must(cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions))
	}
}

// apply puts the retries into the request, which is then that of a run at which nobody
// waits: somebody who waits sees a failure, and decides.
func (r *retryFlags) apply(cmd *cobra.Command, request *errandv1.CreateRunRequest, flags *runFlags) error {
	if r.retries < 0 {
		return usage("--retries %d: must not be negative", r.retries)
	}
	if r.retries == 0 {
		for _, name := range retryDetails {
			if cmd.Flags().Changed(name) {
				return usage("--%s wants --retries, which says how often", name)
			}
		}
		return nil
	}
	if !flags.detach {
		f := usage("--retries wants -d: a run that you wait at shows you how it failed and is not tried again by itself")
		f.hint = "errand wait stays with a detached one, as in: errand wait $(errand run -d --retries 3 IMAGE)"
		return f
	}
	if flags.interactive || flags.terminal {
		return usage("--retries can not be given with -i or -t: what one attempt has read is gone for the next")
	}
	if request.Spec.Retry == nil {
		request.Spec.Retry = &errandv1.Retry{}
	}
	retry := request.Spec.Retry
	retry.Retries = r.retries
	retry.Only, retry.Never = trimmed(r.only), trimmed(r.never)
	retry.Backoff, retry.BackoffMax = r.backoff.proto(), r.backoffMax.proto()
	request.Trigger = errandv1.Trigger_TRIGGER_API
	return nil
}

// trimmed allows a space behind a comma.
func trimmed(words []string) []string {
	var clean []string
	for _, word := range words {
		clean = append(clean, strings.TrimSpace(word))
	}
	return clean
}
