package api

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/records"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// The bounds of a list.
const (
	pageSizeDefault   = 50
	pageSizeMax       = 500
	pageTokenBytesMax = 512
	statusesMax       = 16
)

// cursor is where a list goes on. A list has two parts: the runs under way by the
// revision of their creation, then the finished ones by the time of their end,
// each from the newest on. A run that ends between two pages moves to the second
// part: it may be shown twice, but it is not missed.
type cursor struct {
	// finished tells that the first part is through.
	finished bool
	// before bounds the create revisions of the first part; 0 is no bound.
	before int64
	// ended, run and forward bound the second part: what comes after such an entry in
	// the order of compareEntries. An empty run is no bound.
	ended   int64
	run     string
	forward bool
}

const (
	tokenLive    = "l"
	tokenHistory = "e"
	// tokenForward goes on at an entry whose key counts up.
	tokenForward = "h"
	// tokenFilterBytes is enough that a token is not taken for another list's by
	// mistake; it is no protection against anybody.
	tokenFilterBytes = 8
)

// token encodes a cursor for a list with some filters.
func (c cursor) token(filters string) string {
	text := strings.Join([]string{tokenLive, filters, strconv.FormatInt(c.before, 10)}, ",")
	if c.finished {
		kind := tokenHistory
		if c.forward {
			kind = tokenForward
		}
		text = strings.Join([]string{kind, filters, strconv.FormatInt(c.ended, 10), c.run}, ",")
	}
	return base64.RawURLEncoding.EncodeToString([]byte(text))
}

// parseCursor reads a token back. The empty token is the beginning.
func parseCursor(token, filters string) (cursor, error) {
	if token == "" {
		return cursor{}, nil
	}
	if len(token) > pageTokenBytesMax {
		return cursor{}, fmt.Errorf("is longer than %d bytes", pageTokenBytesMax)
	}
	data, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil {
		return cursor{}, fmt.Errorf("is not one that a list returned")
	}
	parts := strings.Split(string(data), ",")
	if len(parts) < 3 {
		return cursor{}, fmt.Errorf("is not one that a list returned")
	}
	forward := parts[0] == tokenForward
	history := forward || parts[0] == tokenHistory
	number, err := strconv.ParseInt(parts[2], 10, 64)
	switch {
	case parts[1] != filters:
		return cursor{}, fmt.Errorf("belongs to a list with other filters")
	case err != nil || number < 0 || number > records.EndedMsMax && history:
	case parts[0] == tokenLive && len(parts) == 3:
		return cursor{before: number}, nil
	case history && len(parts) == 4 && parts[3] == "" && number == 0:
		return cursor{finished: true}, nil
	case history && len(parts) == 4:
		if _, err := records.AppOfRun(parts[3]); err == nil {
			return cursor{finished: true, ended: number, run: parts[3], forward: forward}, nil
		}
	}
	return cursor{}, fmt.Errorf("is not one that a list returned")
}

// filter is what a list lets through.
type filter struct {
	app      string
	statuses []errandv1.Status
	name     string
	labels   map[string]string
}

// filterOf checks a list's request.
func filterOf(request *errandv1.ListRunsRequest) (filter, int, []Violation) {
	c := &checker{}
	if request.GetApp() != "" {
		if err := records.CheckName(request.GetApp()); err != nil {
			c.add("app", "%s", err)
		}
	}
	if len(request.GetStatuses()) > statusesMax {
		c.add("statuses", "are %d, the most is %d", len(request.GetStatuses()), statusesMax)
	}
	for i, status := range request.GetStatuses()[:min(len(request.GetStatuses()), statusesMax)] {
		if _, known := errandv1.Status_name[int32(status)]; !known || status == errandv1.Status_STATUS_UNSPECIFIED {
			c.add("statuses["+strconv.Itoa(i)+"]", "is not a status: %d", status)
		}
	}
	c.words("name", request.GetName(), nameRunesMax)
	c.labels("labels", request.GetLabels())
	size := int(request.GetPageSize())
	switch {
	case size == 0:
		size = pageSizeDefault
	case size < 0 || size > pageSizeMax:
		c.add("page_size", "must be 1 to %d, or 0 for %d, is %d", pageSizeMax, pageSizeDefault, size)
	}
	return filter{
		app: request.GetApp(), statuses: request.GetStatuses(), name: request.GetName(), labels: request.GetLabels(),
	}, size, c.violations
}

// fingerprint is the same for the same filters.
func (f filter) fingerprint() string {
	statuses := slices.Clone(f.statuses)
	slices.Sort(statuses)
	request := &errandv1.ListRunsRequest{App: f.app, Statuses: slices.Compact(statuses), Name: f.name, Labels: f.labels}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(request)
	if err != nil {
		panic(fmt.Sprintf("encode checked filters: %v", err))
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:tokenFilterBytes])
}

// wants tells whether runs of a status and name may pass. It needs no record.
func (f filter) wants(status errandv1.Status, name string) bool {
	return (len(f.statuses) == 0 || slices.Contains(f.statuses, status)) && (f.name == "" || f.name == name)
}

// wantsLive and wantsFinished tell whether a part of the list can hold anything.
func (f filter) wantsLive() bool {
	return len(f.statuses) == 0 || slices.ContainsFunc(f.statuses, func(status errandv1.Status) bool { return !terminal(status) })
}

func (f filter) wantsFinished() bool {
	return len(f.statuses) == 0 || slices.ContainsFunc(f.statuses, terminal)
}

func (f filter) passes(run *errandv1.Run) bool {
	if !f.wants(run.GetStatus(), run.GetName()) {
		return false
	}
	for key, value := range f.labels {
		if got, ok := run.GetLabels()[key]; !ok || got != value {
			return false
		}
	}
	return true
}

func terminal(status errandv1.Status) bool {
	return status >= errandv1.Status_STATUS_SUCCEEDED && status <= errandv1.Status_STATUS_SKIPPED
}

// statusWord is the word of the contract for a status.
func statusWord(status errandv1.Status) string {
	return strings.TrimPrefix(status.String(), "STATUS_")
}
