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
	for len(data) > 0 {
		line := data
		if end := bytes.IndexByte(data, '\n'); end >= 0 {
			line = data[:end+1]
		}
		data = data[len(line):]
		if !p.midLine[chunk.GetStream()] {
			p.buffer = chunk.GetAt().AsTime().In(time.UTC).AppendFormat(p.buffer, stampForm)
			p.buffer = append(p.buffer, ' ')
		}
		p.buffer = append(p.buffer, line...)
		p.midLine[chunk.GetStream()] = line[len(line)-1] != '\n'
	}
}

func (p *logPrinter) flush(stream errandv1.Stream) error {
	if len(p.buffer) == 0 {
		return nil
	}
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

// lineTail keeps the chunks of the last lines that were shown to it.
type lineTail struct {
	lines  int
	only   errandv1.Stream
	kept   []*errandv1.LogChunk
	ends   int  // kept chunks that end a line
	inLine bool // the last chunk did not end its line
}

func (t *lineTail) add(chunks []*errandv1.LogChunk) error {
	for _, chunk := range chunks {
		if chunk.GetStream() != t.only {
			continue
		}
		t.kept = append(t.kept, chunk)
		t.inLine = !endsLine(chunk)
		if !t.inLine {
			t.ends++
		}
		t.trim()
	}
	return nil
}

// trim drops whole lines from the front.
func (t *lineTail) trim() {
	count := t.ends
	if t.inLine {
		count++
	}
	for ; count > t.lines; count-- {
		for i, chunk := range t.kept {
			if endsLine(chunk) {
				t.kept = t.kept[i+1:]
				break
			}
		}
		t.ends--
	}
}

func endsLine(chunk *errandv1.LogChunk) bool { return bytes.HasSuffix(chunk.GetData(), []byte("\n")) }
