package report

import (
	"bytes"
	_ "embed" // the page
	"encoding/json"
	"fmt"
	"html"
	"io"
	"reflect"
	"slices"
	"time"

	"github.com/errand-run/errand/simulation/history"
)

//go:embed page.html
var template []byte

// MarksMax is the default of how many marks and arrows a page shows: about ten
// megabytes. The last ones are kept, since a failure is at the end.
const MarksMax = 50_000

// barsMax bounds the sandboxes and the faults that a page shows.
const barsMax = 20_000

// The lanes that belong to no machine.
const (
	laneClients = "clients"
	laneStore   = "store"
	laneWorld   = "world"
)

// Page collects a history for a page. It holds at most MarksMax marks, however long
// the history is.
type Page struct {
	filter   Filter
	marksMax int
	nodes    []string
	marks    []mark
	// next is where the next mark goes once there are marksMax; elided counts what was
	// overwritten.
	next   int
	elided int
	bars   []bar
	shades []shade
	sent   map[any]sending
	last   time.Duration
}

type sending struct {
	lane string
	at   time.Duration
}

// mark is a moment in a lane, or an arrow to it if From is set.
type mark struct {
	Lane   string  `json:"l"`
	At     float64 `json:"t"`
	Kind   string  `json:"k"`
	Text   string  `json:"x"`
	Run    string  `json:"r,omitempty"`
	Step   uint64  `json:"s"`
	From   string  `json:"f,omitempty"`
	FromAt float64 `json:"ft,omitempty"`
}

// bar is a command of a sandbox.
type bar struct {
	Lane  string  `json:"l"`
	Begin float64 `json:"b"`
	End   float64 `json:"e"`
	Text  string  `json:"x"`
	Run   string  `json:"r"`
	Open  bool    `json:"o,omitempty"`
	Cause string  `json:"c,omitempty"`
	key   string
}

// shade is a fault; an empty lane means all of them.
type shade struct {
	Lane    string  `json:"l,omitempty"`
	Begin   float64 `json:"b"`
	End     float64 `json:"e"`
	Text    string  `json:"x"`
	Name    string  `json:"n"`
	Outside bool    `json:"m,omitempty"`
	open    bool
}

// Finding is something to point at, such as a violation.
type Finding struct {
	At   time.Duration
	Text string
}

// NewPage returns an empty page that shows at most so many marks; 0 means MarksMax.
func NewPage(filter Filter, marksMax int) *Page {
	if marksMax <= 0 {
		marksMax = MarksMax
	}
	return &Page{filter: filter, marksMax: marksMax, sent: map[any]sending{}}
}

// Observe takes an event.
func (p *Page) Observe(e history.Event) {
	p.last = max(p.last, e.At)
	p.note(e.Node)
	if !p.filter.Shows(e) {
		return
	}
	switch detail := e.Detail.(type) {
	case history.Command:
		p.command(e, detail)
	case history.Fault:
		p.fault(e, detail)
	default:
	}
	if e.Kind == history.KindTurn {
		return // far too many; a trace has them
	}
	m := mark{Lane: laneOf(e), At: seconds(e.At), Kind: e.Kind.String(), Text: Describe(e), Run: e.Run, Step: e.Step}
	if e.Kind == history.KindPacket {
		p.packet(e, &m)
	}
	p.add(m)
}

func (p *Page) note(node string) {
	if i, found := slices.BinarySearchFunc(p.nodes, node, natural); node != "" && !found {
		p.nodes = slices.Insert(p.nodes, i, node)
	}
}

// natural orders n2 before n10.
func natural(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return bytes.Compare([]byte(a), []byte(b))
}

func laneOf(e history.Event) string {
	switch e.Kind {
	case history.KindCall, history.KindAnswer:
		return laneClients
	case history.KindCommit, history.KindStore:
		return laneStore
	default:
	}
	if e.Node == "" {
		return laneWorld
	}
	return e.Node
}

// packet joins the sending of a packet with its arrival: the same pointer is the
// detail of both.
func (p *Page) packet(e history.Event, m *mark) {
	if reflect.ValueOf(e.Detail).Kind() != reflect.Pointer {
		return
	}
	sent, known := p.sent[e.Detail]
	if !known {
		if len(p.sent) > p.marksMax {
			clear(p.sent)
		}
		p.sent[e.Detail] = sending{laneOf(e), e.At}
		return
	}
	m.From, m.FromAt = sent.lane, seconds(sent.at)
}

func (p *Page) add(m mark) {
	if len(p.marks) < p.marksMax {
		p.marks = append(p.marks, m)
		return
	}
	p.marks[p.next] = m
	p.next = (p.next + 1) % p.marksMax
	p.elided++
}

func (p *Page) command(e history.Event, c history.Command) {
	key := fmt.Sprintf("%s %s/%d.%d", e.Node, e.Run, e.Attempt, e.Placement)
	if c.Started {
		p.bars = append(p.bars, bar{
			Lane: e.Node, Begin: seconds(e.At), Open: true, Run: e.Run, key: key,
			Text: fmt.Sprintf("%s attempt %d placement %d token %d", e.Run, e.Attempt, e.Placement, c.Token),
		})
		if len(p.bars) > barsMax {
			p.bars = slices.Delete(p.bars, 0, len(p.bars)-barsMax)
		}
		return
	}
	for i := range slices.Backward(p.bars) {
		if b := &p.bars[i]; b.Open && b.key == key {
			b.Open, b.End, b.Cause = false, seconds(e.At), c.Cause
			b.Text += fmt.Sprintf(", ended with %d by %s", c.Code, c.Cause)
			return
		}
	}
}

func (p *Page) fault(e history.Event, f history.Fault) {
	if f.Begin {
		p.shades = append(p.shades, shade{
			Lane: e.Node, Begin: seconds(e.At), End: seconds(e.At), Text: Describe(e), Name: f.Name, Outside: f.Outside, open: !f.Instant,
		})
		if len(p.shades) > barsMax {
			p.shades = slices.Delete(p.shades, 0, len(p.shades)-barsMax)
		}
		return
	}
	for i := range slices.Backward(p.shades) {
		if s := &p.shades[i]; s.open && s.Lane == e.Node && s.Name == f.Name {
			s.open, s.End = false, seconds(e.At)
			return
		}
	}
}

func seconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e6 }

type document struct {
	Title    string   `json:"title"`
	Note     string   `json:"note,omitempty"`
	End      float64  `json:"end"`
	Lanes    []string `json:"lanes"`
	Marks    []mark   `json:"marks"`
	Bars     []bar    `json:"bars"`
	Shades   []shade  `json:"shades"`
	Findings []point  `json:"findings"`
}

type point struct {
	At   float64 `json:"t"`
	Text string  `json:"x"`
}

// Write writes the page: one file that needs nothing else.
func (p *Page) Write(w io.Writer, title string, findings []Finding) error {
	d := document{
		Title: title, End: seconds(p.last), Lanes: append([]string{laneClients, laneStore, laneWorld}, p.nodes...),
		Marks: slices.Concat(p.marks[p.next:], p.marks[:p.next]), Bars: slices.Clone(p.bars), Shades: slices.Clone(p.shades),
	}
	if p.elided > 0 {
		d.Note = fmt.Sprintf("%d earlier marks are left out; the text trace has them", p.elided)
	}
	for i := range d.Bars {
		if d.Bars[i].Open {
			d.Bars[i].End = d.End
		}
	}
	for i := range d.Shades {
		if d.Shades[i].open {
			d.Shades[i].End = max(d.Shades[i].Begin, d.End)
		}
	}
	for _, f := range findings {
		d.Findings = append(d.Findings, point{seconds(f.At), f.Text})
	}
	data, err := json.Marshal(d) // escapes <, > and &, so that no text ends the script
	if err != nil {
		return fmt.Errorf("encode page: %w", err)
	}
	page := bytes.Replace(template, []byte("{{title}}"), []byte(html.EscapeString(title)), 1)
	page = bytes.Replace(page, []byte("{{data}}"), data, 1)
	if _, err := w.Write(page); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}
