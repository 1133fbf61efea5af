package cli

import (
	"context"
	"fmt"
	"math"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/errand-run/errand/api/client"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

type logsFlags struct {
	follow     bool
	tail       int
	since      string
	timestamps bool
	attempt    int32
	stream     string
}

func (a *app) logsCommand() *cobra.Command {
	var flags logsFlags
	cmd := &cobra.Command{
		Use:   "logs RUN",
		Short: "Show what a run wrote",
		Long: `Show what a run's command wrote: its stdout on stdout, its stderr on stderr,
byte for byte. It works while the run goes on and after it has ended.`,
		Example: `  errand logs k.default.4tq            the beginning of an id is enough
  errand logs -f --tail 20 RUN         the last 20 lines, then all that follows
  errand logs --since 10m --timestamps RUN
  errand logs --stream stderr RUN      only what went to stderr`,
		Args:              a.oneRun,
		ValidArgsFunction: a.completeRun(anyRun),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.logs(cmd.Context(), cmd, args[0], flags)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&flags.follow, "follow", "f", false, "go on until the attempt has ended")
	f.IntVar(&flags.tail, "tail", 0, "only the last lines (default all)")
	f.StringVar(&flags.since, "since", "", "only what was written since: 10m (ago) or a time in RFC 3339")
	f.BoolVarP(&flags.timestamps, "timestamps", "t", false, "begin each line with its time, in UTC")
	f.Int32Var(&flags.attempt, "attempt", 0, "the attempt to show, from 1 (default the current one)")
	f.StringVar(&flags.stream, "stream", "", "only stdout or stderr")
	must(cmd.RegisterFlagCompletionFunc("stream", cobra.FixedCompletions([]string{"stdout", "stderr"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func (a *app) logs(ctx context.Context, cmd *cobra.Command, id string, flags logsFlags) error {
	request := &errandv1.LogsRequest{Attempt: flags.attempt, Follow: flags.follow}
	if cmd.Flags().Changed("tail") {
		if flags.tail < 1 || flags.tail > math.MaxInt32 {
			return usage("--tail %d: must be 1 to %d", flags.tail, math.MaxInt32)
		}
		request.TailLines = int32(flags.tail)
	}
	if flags.attempt < 0 {
		return usage("--attempt %d: attempts are numbered from 1", flags.attempt)
	}
	if flags.since != "" {
		since, err := parseSince(a.now(), flags.since)
		if err != nil {
			return err
		}
		request.Since = timestamppb.New(since)
	}
	only, err := parseStream(flags.stream)
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	found, err := c.get(ctx, id)
	if err != nil {
		return err
	}
	request.Id = found.GetId()
	printer := a.printer()
	printer.only, printer.timestamps = only, flags.timestamps
	reading := &logReading{c: c, client: c.once, request: request, show: printer.print}
	if flags.follow {
		reading.client = c.patient
	}
	ownTail := request.GetTailLines() > 0 && only != errandv1.Stream_STREAM_UNSPECIFIED
	if ownTail {
		err = reading.tailOfStream(ctx, only)
	}
	if err == nil && reading.end == nil && (flags.follow || !ownTail) {
		err = reading.read(ctx)
	}
	end := reading.end
	if err != nil || end == nil || end.GetComplete() && printer.wrote {
		return err
	}
	if found, err = c.get(ctx, request.GetId()); err == nil {
		a.noteIncomplete(found, request.GetAttempt(), end, printer)
		a.noteNeverRan(found, request.GetAttempt())
	}
	return err
}

// logReading shows one attempt's log.
type logReading struct {
	c       *connection
	client  *client.Client
	request *errandv1.LogsRequest
	// show takes the chunks in order; it may block. Its error ends the reading.
	show func([]*errandv1.LogChunk) error
	// end is the log's; nil when it has none: the attempt goes on and was not to be
	// followed, or there never was one.
	end *errandv1.LogEnd
}

// read reads to the log's end. After it, request has the attempt that was read and
// the offset that was reached.
func (r *logReading) read(ctx context.Context) error {
	for message, err := range r.client.Logs(ctx, r.request) {
		if err != nil {
			return r.c.explain(err)
		}
		if message.GetAttempt() != 0 {
			r.request.Attempt = message.GetAttempt()
		}
		if chunks := message.GetChunks(); len(chunks) > 0 {
			if err := r.show(chunks); err != nil {
				return err
			}
			r.request.Offset, r.request.TailLines = chunks[len(chunks)-1].GetNextOffset(), 0
		}
		r.end = message.GetEnd()
	}
	return nil
}

// printer shows chunks on the streams of this process.
func (a *app) printer() *logPrinter {
	return &logPrinter{stdout: a.stdout, stderr: a.stderr, gap: func(bytes int64) {
		a.note("up to %s missing here: dropped by the log's size limit or a full disk, or removed since", byteCount(bytes, "of the output is", "of the output are"))
	}}
}

// tailOfStream shows the last lines of one stream. The node counts the lines of
// both together, so this reads what is there and counts by itself.
func (r *logReading) tailOfStream(ctx context.Context, only errandv1.Stream) error {
	tail := &lineTail{lines: int(r.request.GetTailLines()), only: only}
	show, follow := r.show, r.request.GetFollow()
	r.show, r.request.Follow, r.request.TailLines = tail.add, false, 0
	if err := r.read(ctx); err != nil {
		return err
	}
	r.show, r.request.Follow = show, follow
	return show(tail.last())
}

func parseStream(name string) (errandv1.Stream, error) {
	switch name {
	case "":
		return errandv1.Stream_STREAM_UNSPECIFIED, nil
	case "stdout":
		return errandv1.Stream_STREAM_STDOUT, nil
	case "stderr":
		return errandv1.Stream_STREAM_STDERR, nil
	default:
		return 0, usage("--stream %q: must be stdout or stderr", name)
	}
}

// noteNeverRan says why there is nothing to show of an attempt whose command was not
// started: silence would look like a command that had nothing to say.
func (a *app) noteNeverRan(run *errandv1.Run, attempt int32) {
	reason, message, ended := run.GetReason(), run.GetMessage(), terminal(run.GetStatus())
	for _, tried := range run.GetAttempts() {
		if tried.GetNumber() != attempt {
			continue
		}
		if tried.GetStartedAt() != nil {
			return
		}
		reason, message, ended = tried.GetReason(), tried.GetMessage(), terminal(tried.GetStatus())
	}
	if ended {
		a.note("run %s wrote nothing, for its command was not started: %s: %s", run.GetId(), reasonWord(reason), message)
	}
}

// byteCount is a number of bytes with the words that follow one or several.
func byteCount(n int64, one, several string) string {
	if n == 1 {
		return "1 byte " + one
	}
	return fmt.Sprintf("%d bytes %s", n, several)
}

// noteIncomplete says when a log is not all that the command wrote. An attempt
// whose command never started wrote nothing.
func (a *app) noteIncomplete(run *errandv1.Run, attempt int32, end *errandv1.LogEnd, printer *logPrinter) {
	if end == nil || end.GetComplete() || printer.gaps > 0 && end.GetDroppedBytes() > 0 {
		return
	}
	for _, tried := range run.GetAttempts() {
		switch {
		case tried.GetNumber() != attempt || tried.GetStartedAt() == nil:
		case end.GetDroppedBytes() > 0:
			a.note("the stored log of run %s is not complete: %s dropped by its size limit or a full disk, or removed since", run.GetId(), byteCount(end.GetDroppedBytes(), "was", "were"))
		default:
			a.note("the log of run %s may not be complete: it has no end mark", run.GetId())
		}
	}
}
