// Package fakeapi is a node's public API in memory, for the tests of its callers: the
// real protocol over real HTTP, with runs that live as their scripts
// say, a listener that can go away and come back, and a wire that can be cut.
package fakeapi

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/errand-run/errand/cluster/freeport"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
	"github.com/errand-run/errand/messages/errand/v1/errandv1connect"
)

// Server is the API. Its fields are set before Start and not changed afterwards.
type Server struct {
	// Token is what callers must send; empty wants none.
	Token string
	// Script is the life of each run that is created. It runs on a goroutine that
	// ends with Close.
	Script func(*Live)
	// Cut returns after how many bytes of an answer to a call the connection is
	// cut; negative means never.
	Cut func(procedure string) int
	// LoseAnswers is how many creations are done without an answer.
	LoseAnswers int
	// LogError, when it returns one, is the answer to a call of Logs.
	LogError func() error
	// CreateError, when it returns one, is the answer to a creation.
	CreateError func() error
	// PageMax is the most runs of one page, and Examined what a page says to have looked
	// at, unless they are 0.
	PageMax  int
	Examined int64
	Images   []*errandv1.Image
	// PullAnswers and PullError are how a pull is answered.
	PullAnswers []*errandv1.PullImageResponse
	PullError   error
	Nodes       []*errandv1.Node
	// Causes and Histories are those of runs, by id, "" for the causes of any other; NodePulls those of every node.
	Causes    map[string][]*errandv1.Cause
	Histories map[string]*errandv1.RunHistory
	NodePulls []*errandv1.ImagePull
	// Removals are what is lost with nodes that are away; a node that is not is refused.
	Removals map[string]*errandv1.RemoveNodeResponse
	// NodeCheck is what a check finds; nil is none.
	NodeCheck *errandv1.CheckNodeResponse
	// Attached serves each Attach after its first message; nil refuses them.
	Attached func(*connect.BidiStream[errandv1.AttachRequest, errandv1.AttachResponse]) error
	// Inside is what each command beside a run writes, and what is copied out of one; nil
	// lets nobody in.
	Inside []byte

	mu       sync.Mutex
	runs     []*Live // oldest first
	byKey    map[string]*Live
	imports  [][]byte
	pulls    []*errandv1.PullImageRequest
	calls    map[string]int
	changed  chan struct{} // closed and replaced at every change
	ctx      context.Context
	stop     context.CancelFunc
	scripts  sync.WaitGroup
	address  string
	serving  *http.Server
	served   sync.WaitGroup
	creating int
	// past are the states that runs came to; those before forgotten are not told.
	past      []*errandv1.Run
	forgotten int
}

// New returns a server that has not started.
func New() *Server {
	ctx, stop := context.WithCancel(context.Background())
	return &Server{byKey: map[string]*Live{}, calls: map[string]int{}, changed: make(chan struct{}), ctx: ctx, stop: stop}
}

// Start listens, on the address of before if there was one.
func (s *Server) Start() error {
	if s.address == "" {
		address, err := freeport.Address()
		if err != nil {
			return err
		}
		s.address = address
	}
	listener, err := net.Listen("tcp", s.address)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle(errandv1connect.NewRunServiceHandler((*runService)(s)))
	mux.Handle(errandv1connect.NewNodeServiceHandler((*nodeService)(s)))
	mux.Handle(errandv1connect.NewImageServiceHandler((*imageService)(s)))
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s.serving = &http.Server{Handler: s.guard(mux), ReadHeaderTimeout: time.Minute, Protocols: &protocols}
	s.served.Go(func() { _ = s.serving.Serve(listener) })
	return nil
}

// Stop cuts every connection and stops listening. Runs go on.
func (s *Server) Stop() {
	_ = s.serving.Close()
	s.served.Wait()
}

// Close stops everything and waits for it.
func (s *Server) Close() {
	s.stop()
	s.Stop()
	s.scripts.Wait()
}

// URL is the server's address.
func (s *Server) URL() string { return "http://" + s.address }

// Calls is how often a procedure was called.
func (s *Server) Calls(procedure string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[procedure]
}

// Runs returns the runs, the oldest first.
func (s *Server) Runs() []*Live {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*Live(nil), s.runs...)
}

// Imports returns the bytes of each import.
func (s *Server) Imports() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([][]byte(nil), s.imports...)
}

// PullRequests returns the pulls that were asked for.
func (s *Server) PullRequests() []*errandv1.PullImageRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*errandv1.PullImageRequest(nil), s.pulls...)
}

// Add puts a run there as it is, without a script.
func (s *Server) Add(run *errandv1.Run) *Live {
	s.mu.Lock()
	defer s.mu.Unlock()
	live := &Live{s: s, run: run, canceled: make(chan struct{})}
	s.runs = append(s.runs, live)
	s.note(run)
	s.announce()
	return live
}

// Await waits until a condition on the server holds, looked at after each change.
func (s *Server) Await(ctx context.Context, holds func() bool) error {
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if holds() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// announce wakes who waits for a change; the lock is held.
func (s *Server) announce() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// guard counts calls, asks for the token and cuts the wire.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.calls[r.URL.Path]++
		s.announce()
		s.mu.Unlock()
		if s.Token != "" && r.Header.Get("Authorization") != "Bearer "+s.Token {
			writer := connect.NewErrorWriter()
			_ = writer.Write(w, r, connect.NewError(connect.CodeUnauthenticated, fmt.Errorf("the API token is missing or wrong")))
			return
		}
		if s.Cut != nil {
			if limit := s.Cut(r.URL.Path); limit >= 0 {
				w = &cutWriter{ResponseWriter: w, left: limit}
			}
		}
		next.ServeHTTP(w, r)
	})
}

// cutWriter sends some bytes and then drops the connection.
type cutWriter struct {
	http.ResponseWriter
	left int
}

func (w *cutWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *cutWriter) Write(p []byte) (int, error) {
	if len(p) < w.left {
		w.left -= len(p)
		return w.ResponseWriter.Write(p)
	}
	_, _ = w.ResponseWriter.Write(p[:w.left])
	_ = http.NewResponseController(w.ResponseWriter).Flush()
	panic(http.ErrAbortHandler)
}

func (w *cutWriter) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// Live is a run of the server.
type Live struct {
	s        *Server
	run      *errandv1.Run
	log      []entry
	end      *errandv1.LogEnd
	canceled chan struct{}
	// canceledBy is who asked first.
	canceledBy string
}

type entry struct {
	chunk *errandv1.LogChunk
	at    int64 // its offset
}

// Run returns a copy of the record.
func (l *Live) Run() *errandv1.Run {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return proto.Clone(l.run).(*errandv1.Run)
}

// Canceled is closed by the first Cancel.
func (l *Live) Canceled() <-chan struct{} { return l.canceled }

// CanceledBy is who the first Cancel says asked for it.
func (l *Live) CanceledBy() string {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.canceledBy
}

// Closed is closed when the server goes.
func (l *Live) Closed() <-chan struct{} { return l.s.ctx.Done() }

// Start begins attempt 1.
func (l *Live) Start() {
	l.change(func() {
		l.run.Status = errandv1.Status_STATUS_RUNNING
		l.run.StartedAt = timestamppb.Now()
		l.run.Attempts = []*errandv1.Attempt{{Number: 1, Node: "n1", Status: l.run.GetStatus(), StartedAt: l.run.GetStartedAt()}}
	})
}

// Place gives attempt 1 to a node that has not started its command.
func (l *Live) Place() {
	l.change(func() { l.run.Attempts = []*errandv1.Attempt{{Number: 1, Node: "n1", Status: l.run.GetStatus()}} })
}

// Hold says what keeps a run from its start.
func (l *Live) Hold(message string) { l.change(func() { l.run.Message = message }) }

// Write adds one chunk to the log. Offsets have a stride that is no byte count,
// as those of a stored log have.
func (l *Live) Write(stream errandv1.Stream, data string) {
	l.WriteAt(stream, time.Now(), data)
}

// WriteAt is Write at a time.
func (l *Live) WriteAt(stream errandv1.Stream, at time.Time, data string) {
	l.change(func() {
		var offset int64
		if len(l.log) > 0 {
			offset = l.log[len(l.log)-1].chunk.GetNextOffset()
		}
		l.log = append(l.log, entry{at: offset, chunk: &errandv1.LogChunk{
			Stream: stream, At: timestamppb.New(at), Data: []byte(data), NextOffset: offset + int64(len(data)) + 17,
		}})
	})
}

// Drop adds a mark for bytes that were dropped from the log.
func (l *Live) Drop(bytes int64) {
	l.change(func() {
		var offset int64
		if len(l.log) > 0 {
			offset = l.log[len(l.log)-1].chunk.GetNextOffset()
		}
		l.log = append(l.log, entry{at: offset, chunk: &errandv1.LogChunk{DroppedBytes: bytes, NextOffset: offset + 17}})
	})
}

// EndLog writes the end mark.
func (l *Live) EndLog(end *errandv1.LogEnd) { l.change(func() { l.end = end }) }

// End makes the run terminal, after its log.
func (l *Live) End(status errandv1.Status, reason errandv1.Reason, message string, code *int32) {
	l.change(func() {
		if l.end == nil && len(l.run.GetAttempts()) > 0 {
			l.end = &errandv1.LogEnd{Complete: true}
		}
		l.run.Status, l.run.Reason, l.run.Message, l.run.ExitCode = status, reason, message, code
		l.run.EndedAt = timestamppb.Now()
		for _, attempt := range l.run.GetAttempts() {
			attempt.Status, attempt.Reason, attempt.ExitCode, attempt.EndedAt, attempt.LogComplete = status, reason, code, l.run.GetEndedAt(), true
		}
	})
}

// Exit ends the run with a code of its command.
func (l *Live) Exit(code int32) {
	status, reason := errandv1.Status_STATUS_SUCCEEDED, errandv1.Reason_REASON_UNSPECIFIED
	if code != 0 {
		status, reason = errandv1.Status_STATUS_FAILED, errandv1.Reason_REASON_EXIT_CODE
	}
	l.End(status, reason, "", &code)
}

func (l *Live) change(f func()) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	f()
	l.s.note(l.run)
	l.s.announce()
}

func randomID(app string) string { return "r." + app + "." + rand.Text() }
