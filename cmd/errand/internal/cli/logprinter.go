package cli

import (
	"bytes"
	"errors"
	"io"
	"syscall"
	"time"

	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// logPrinter writes chunks to the streams that they came from, byte for byte.
type logPrinter struct {
	stdout, stderr io.Writer
	// only is the one stream to show; unspecified means both.
	only       errandv1.Stream
	timestamps bool
	// midLine says per stream that the last chunk did not end its line.
	midLine map[errandv1.Stream]bool
	buffer  []byte
	// gap says where bytes are missing, and gaps is how often it did.
	gap  func(bytes int64)
	gaps int
	// wrote tells that there was something to show.
	wrote bool
}

// stampForm is RFC 3339 with nanoseconds of a fixed width, so that columns align
// and text sorts by time.
const stampForm = "2006-01-02T15:04:05.000000000Z07:00"

// print writes neighbours of one stream together: a write per line would cost
// more than all the rest.
func (p *logPrinter) print(chunks []*errandv1.LogChunk) error {
	current := errandv1.Stream_STREAM_UNSPECIFIED
	for _, chunk := range chunks {
		if chunk.GetDroppedBytes() > 0 {
			if err := p.flush(current); err != nil {
				return err
			}
			p.gaps++
			p.gap(chunk.GetDroppedBytes())
		}
		if p.only != errandv1.Stream_STREAM_UNSPECIFIED && chunk.GetStream() != p.only {
			continue
		}
		if chunk.GetStream() != current {
			if err := p.flush(current); err != nil {
				return err
			}
			current = chunk.GetStream()
		}
		p.add(chunk)
	}
	return p.flush(current)
}

func (p *logPrinter) add(chunk *errandv1.LogChunk) {
	data := chunk.GetData()
	if !p.timestamps {
		p.buffer = append(p.buffer, data...)
		return
	}
	if p.midLine == nil {
		p.midLine = make(map[errandv1.Stream]bool)
	}
	stamp := append(chunk.GetAt().AsTime().In(time.UTC).AppendFormat(nil, stampForm), ' ')
	for len(data) > 0 {
		line := data
		if end := bytes.IndexByte(data, '\n'); end >= 0 {
			line = data[:end+1]
		}
		data = data[len(line):]
		if !p.midLine[chunk.GetStream()] {
			p.buffer = append(p.buffer, stamp...)
		}
		p.buffer = append(p.buffer, line...)
		p.midLine[chunk.GetStream()] = line[len(line)-1] != '\n'
	}
}

func (p *logPrinter) flush(stream errandv1.Stream) error {
	if len(p.buffer) == 0 {
		return nil
	}
	p.wrote = true
	target := p.stdout
	if stream == errandv1.Stream_STREAM_STDERR {
		target = p.stderr
	}
	_, err := target.Write(p.buffer)
	p.buffer = p.buffer[:0]
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) {
		return errPipe
	}
	if err != nil {
		return broken(codeOutput, "write the output: %s", reasonOf(err))
	}
	return nil
}

// errPipe is returned when nobody reads the output any more.
var errPipe = exitStatus(ExitPipe)

// lineTail keeps the chunks that hold the last lines of a stream. A chunk may hold many
// lines, so it counts them and cuts none before the end.
type lineTail struct {
	lines int
	only  errandv1.Stream
	kept  []*errandv1.LogChunk
	ends  int // line ends in kept
}

func (t *lineTail) add(chunks []*errandv1.LogChunk) error {
	for _, chunk := range chunks {
		if chunk.GetStream() != t.only || len(chunk.GetData()) == 0 {
			continue
		}
		t.kept = append(t.kept, chunk)
		t.ends += lineEnds(chunk)
		for len(t.kept) > 1 && t.spare() {
			t.ends -= lineEnds(t.kept[0])
			t.kept = t.kept[1:]
		}
	}
	return nil
}

// spare tells whether the last lines are all behind the first chunk.
func (t *lineTail) spare() bool {
	first := t.kept[0]
	behind := t.count() - lineEnds(first)
	// What is behind a chunk that ends within a line begins within that line.
	return behind > t.lines || behind == t.lines && endsLine(first)
}

// count is the number of lines in kept, the last one perhaps unfinished.
func (t *lineTail) count() int {
	if n := len(t.kept); n > 0 && !endsLine(t.kept[n-1]) {
		return t.ends + 1
	}
	return t.ends
}

// last returns the last lines.
func (t *lineTail) last() []*errandv1.LogChunk {
	skip, kept := t.count()-t.lines, t.kept
	for len(kept) > 0 && skip > 0 {
		if ends := lineEnds(kept[0]); ends < skip || ends == skip && endsLine(kept[0]) {
			skip -= ends
			kept = kept[1:]
			continue
		}
		first := kept[0]
		data := first.GetData()
		for ; skip > 0; skip-- {
			data = data[bytes.IndexByte(data, '\n')+1:]
		}
		cut := &errandv1.LogChunk{Stream: first.GetStream(), At: first.GetAt(), Data: data, NextOffset: first.GetNextOffset()}
		kept = append([]*errandv1.LogChunk{cut}, kept[1:]...)
	}
	return kept
}

func lineEnds(chunk *errandv1.LogChunk) int { return bytes.Count(chunk.GetData(), []byte{'\n'}) }

func endsLine(chunk *errandv1.LogChunk) bool { return bytes.HasSuffix(chunk.GetData(), []byte{'\n'}) }
