package cli

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/errand-run/errand/api/client"
	"github.com/errand-run/errand/api/codes"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// runsWatch shows the runs of a list and then their changes.
type runsWatch struct {
	a       *app
	c       *connection
	request *errandv1.ListRunsRequest
	flags   runsFlags
	table   *table
	// position is where the changes go on; listed are the runs that a list has shown as
	// they were after it.
	position string
	listed   map[string]int64
}

func (a *app) watchRuns(ctx context.Context, c *connection, request *errandv1.ListRunsRequest, flags runsFlags) error {
	w := &runsWatch{a: a, c: c, request: request, flags: flags, table: newTable(a.stdout, a.style(), runsHeader)}
	for {
		if err := w.list(ctx); err != nil {
			return err
		}
		err := w.changes(ctx)
		var failed *client.Error
		if !errors.As(err, &failed) || failed.Code != codes.ListAgain {
			return c.explain(err)
		}
		a.note("what has changed meanwhile can not be told one by one any more; listing the runs that have")
	}
}

// list shows the runs: at first as many as were asked for, and later all that have
// changed since the changes were told last.
func (w *runsWatch) list(ctx context.Context) error {
	request := proto.CloneOf(w.request)
	before := w.position
	w.position, w.listed = "", map[string]int64{}
	var since, position int64
	for shown := 0; ; {
		request.PageSize = runsPageMax
		if since == 0 && w.flags.limit > 0 {
			request.PageSize = int32(min(w.flags.limit-shown, runsPageMax))
		}
		page, err := w.c.patient.List(ctx, request)
		if err != nil {
			return w.c.explain(err)
		}
		if w.position == "" {
			w.position = page.GetPosition()
			since, position = sinceOf(before, w.position)
		}
		var news []*errandv1.Run
		known := 0
		for _, run := range page.GetRuns() {
			switch {
			case run.GetRevision() > since:
				news = append(news, run)
			case terminal(run.GetStatus()):
				known++
			}
			if run.GetRevision() > position {
				w.listed[run.GetId()] = run.GetRevision()
			}
		}
		if err := w.show(news); err != nil {
			return err
		}
		shown += len(news)
		request.PageToken = page.GetNextPageToken()
		enough := since == 0 && w.flags.limit > 0 && shown >= w.flags.limit
		// Those that have ended come by their end: a page of known ones is the last.
		if request.GetPageToken() == "" || enough || known > 0 && len(news) == 0 {
			return nil
		}
	}
}

// sinceOf returns the revision of an earlier position, 0 if there is none or it is
// another store's, and that of a list's.
func sinceOf(before, now string) (since, position int64) {
	store, revision := splitPosition(now)
	if earlier, at := splitPosition(before); earlier == store {
		since = at
	}
	return since, revision
}

func splitPosition(position string) (store string, revision int64) {
	at := strings.LastIndexByte(position, '.')
	revision, err := strconv.ParseInt(position[at+1:], 10, 64)
	if err != nil {
		return position, 0
	}
	return position[:max(at, 0)], revision
}

// changes shows the changes since the list, until they can not be told.
func (w *runsWatch) changes(ctx context.Context) error {
	request := &errandv1.RunChangesRequest{
		App: w.request.GetApp(), Name: w.request.GetName(), Labels: w.request.GetLabels(), Position: w.position,
	}
	for told, err := range w.c.patient.Changes(ctx, request) {
		if err != nil {
			return err
		}
		var news []*errandv1.Run
		for _, change := range told.GetChanges() {
			run := change.GetRun()
			wanted := len(w.request.GetStatuses()) == 0 || slices.Contains(w.request.GetStatuses(), run.GetStatus())
			// What happened while the list was read may be in both.
			if !change.GetDeleted() && wanted && run.GetRevision() > w.listed[run.GetId()] {
				news = append(news, run)
			}
		}
		w.position = told.GetPosition()
		if err := w.show(news); err != nil {
			return err
		}
	}
	return nil
}

// show writes one line, or one document, for each run.
func (w *runsWatch) show(runs []*errandv1.Run) error {
	switch {
	case len(runs) == 0 && (w.flags.quiet || w.table.header == nil):
		return nil // of a table at least the header
	case w.flags.quiet:
		return w.a.printIDs(runs)
	case w.a.output == formatTable:
		return wrote(w.table.write(w.a.runRows(runs)))
	}
	for _, run := range runs {
		document, err := json.Marshal(viewRun(run))
		if err == nil && w.a.output == formatYAML {
			if document, err = yaml.JSONToYAML(document); err == nil {
				document = append([]byte("---\n"), document...)
			}
		} else {
			document = append(document, '\n')
		}
		if err != nil {
			return broken(codeInternal, "write a run: %s", err)
		}
		if _, err := w.a.stdout.Write(document); err != nil {
			return wrote(err)
		}
	}
	return nil
}
