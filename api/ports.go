package api

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/errand-run/errand/cluster/placement"
	"github.com/errand-run/errand/cluster/records"
	errandv1 "github.com/errand-run/errand/messages/errand/v1"
)

// Store is the durable store as the API sees it.
type Store interface {
	records.Reader
	// Scan returns the first keys of a range. It is repeated until the context ends.
	Scan(ctx context.Context, scan records.Scan) ([]records.KV, error)
	// FollowChanges delivers a Reset without events, then every change below the prefix
	// that comes after the Reset's revision, in order, until stop is called. Another
	// Reset says that changes may have been missed. deliver does not block, is called
	// from one goroutine at a time, and owns what it is given.
	FollowChanges(prefix string, deliver func(records.Batch)) (stop func())
	// Past returns the changes below a prefix in (from, until], from being after or, if
	// the store does not hold them any more or they are more than limit, later.
	Past(ctx context.Context, prefix string, after, until int64, limit int) (events []records.Event, from int64, err error)
}

// Router reaches actors wherever they are.
type Router interface {
	// Tell does not block; the message may be lost and must not be changed
	// afterwards.
	Tell(kind, identity string, message proto.Message)
	// AskRepeatedly waits for the answer until the context ends. The message may be taken
	// more than once, by several activations of the actor: one that has it and does not
	// answer is passed over. After an error it may have had its effect.
	AskRepeatedly(ctx context.Context, kind, identity string, message proto.Message) (proto.Message, error)
}

// Rand draws ids.
type Rand interface {
	// Fill fills the bytes from a cryptographic source.
	Fill(b []byte)
}

// Logs reads what attempts wrote on this node. It may be called from many
// goroutines.
type Logs interface {
	// Open opens the log of an attempt, which all its placements share. One that
	// does not exist shows when it is read.
	Open(ctx context.Context, request LogRequest) (LogReader, error)
}

// LogRequest says which part of which log to read.
type LogRequest struct {
	Run     string
	Attempt int32
	// Offset is where to start: 0, or the Next of a chunk that was read.
	Offset int64
	// TailLines leaves out all but the last lines; 0 leaves out none.
	TailLines int32
	// Since leaves out what was written before; zero leaves out none.
	Since time.Time
	// Follow makes Next wait for more until the end mark.
	Follow bool
}

// LogReader reads one log. It is used by one goroutine at a time.
type LogReader interface {
	// Next returns the chunks that follow, about LogBatchBytes and LogBatchChunks at
	// most and at least one unless the batch holds the end. With Follow it waits for
	// them until the context ends. It returns io.EOF when there is no more, after the
	// end mark too, and ErrNoLog when the log does not exist. The batch belongs to the
	// caller.
	Next(ctx context.Context) (LogBatch, error)
	Close() error
}

// ErrNoLog is returned when there is no log: it was not made yet, or its files are gone.
var ErrNoLog = errors.New("there is no log")

// LogBatchBytes is how much data one batch holds, and so one message to a client,
// unless a single chunk is larger.
const LogBatchBytes = 64 << 10

// LogBatchChunks bounds what the chunks of a batch cost beside their data.
const LogBatchChunks = 1024

// LogBatch is some chunks in order.
type LogBatch struct {
	Chunks []LogChunk
	// End is set when the log's end mark follows these chunks.
	End *LogEnd
}

// LogChunk is what was read at once from one stream: any number of lines, the last one
// perhaps unfinished.
type LogChunk struct {
	Stream errandv1.Stream
	At     time.Time
	Data   []byte
	// Next is the offset behind this chunk.
	Next int64
	// Dropped is how many bytes are missing before this chunk, which may have no
	// data and no stream then.
	Dropped int64
}

// LogEnd is what the end mark says.
type LogEnd struct {
	// Complete is true when the log holds all that was written.
	Complete bool
	// DroppedBytes were lost to the size limit or a full disk, or removed with a file.
	DroppedBytes int64
}

// Image is one image that a node holds.
type Image struct {
	Name       string
	Digest     string
	SizeBytes  int64
	ImportedAt time.Time
	// PulledAt and UsedAt are zero for an image that was imported.
	PulledAt, UsedAt time.Time
}

// Pulls tells which images the node pulls. Its methods touch memory only.
type Pulls interface {
	// PullOf returns the pull that a run waits for on this node, or the last one that
	// failed for it.
	PullOf(run string) (*errandv1.ImagePull, bool)
	// Pulls returns those that are under way, by reference.
	Pulls() []*errandv1.ImagePull
}

// Scores tells which nodes could not start what runs have brought there. Its method
// touches memory only.
type Scores interface {
	// LostScore returns the drivers of nodes that have lost score, sorted.
	LostScore() []placement.Lost
}

// Images holds a node's images.
type Images interface {
	// Import stores the images of a docker or OCI archive. name, unless empty, is for
	// an archive of one image and replaces its own. An archive that is cut short, holds
	// no image, or unpacks to far more than it is gives an error of
	// records.ClassInvalid and leaves nothing behind. The archive is not
	// read any more once Import has returned.
	Import(ctx context.Context, name string, archive io.Reader) ([]Image, error)
	List(ctx context.Context) ([]Image, error)
	// Pull fetches an image from its registry and calls progress about once a second
	// meanwhile. credential is nil unless the caller brings one; it is not kept. An
	// error of records.ClassInvalid is the name's or the credential's, one of
	// ClassNotFound says that there is no such image for good, one of ClassUnavailable
	// that the registry refuses, fails or hangs.
	Pull(ctx context.Context, name string, credential *errandv1.RegistryCredential, progress func(*errandv1.ImagePull)) (Image, error)
	// Remove takes an image's name away and returns it normalised. An image that is in
	// use is of records.ClassConflict, one that is not there of ClassNotFound.
	Remove(ctx context.Context, name string) (string, error)
}
