// Package codes is the one table of why a call fails. Every error of the API carries one
// of its words, which programs may decide on: words are never changed or used for
// anything else. The API and its client both take them from here; the package needs
// nothing but Connect's own codes.
package codes

import "connectrpc.com/connect"

// Code is the stable word in an error's ErrorInfo. A client may meet words that it does
// not know, of a newer API.
type Code string

// The codes of the API. All says what each means.
const (
	InvalidField        Code = "INVALID_FIELD"
	RequestTooLarge     Code = "REQUEST_TOO_LARGE"
	InvalidPageToken    Code = "INVALID_PAGE_TOKEN"
	IdempotencyConflict Code = "IDEMPOTENCY_CONFLICT"
	RunDeleted          Code = "RUN_DELETED"
	RunNotFound         Code = "RUN_NOT_FOUND"
	RunAmbiguous        Code = "RUN_AMBIGUOUS"
	RunTerminal         Code = "RUN_TERMINAL"
	RunNotRunning       Code = "RUN_NOT_RUNNING"
	RunElsewhere        Code = "RUN_ELSEWHERE"
	RunNoInput          Code = "RUN_NO_INPUT"
	RunAttached         Code = "RUN_ATTACHED"
	NotSupported        Code = "NOT_SUPPORTED"
	FileNotFound        Code = "FILE_NOT_FOUND"
	FileUnreadable      Code = "FILE_UNREADABLE"
	AttemptNotFound     Code = "ATTEMPT_NOT_FOUND"
	LogElsewhere        Code = "LOG_ELSEWHERE"
	LogUnreadable       Code = "LOG_UNREADABLE"
	LogLost             Code = "LOG_LOST"
	ListAgain           Code = "LIST_AGAIN"
	NodeNotFound        Code = "NODE_NOT_FOUND"
	NodeHasSession      Code = "NODE_HAS_SESSION"
	NodeStopping        Code = "NODE_STOPPING"
	NoImages            Code = "NO_IMAGES"
	ImageInvalid        Code = "IMAGE_INVALID"
	ImageTooLarge       Code = "IMAGE_TOO_LARGE"
	ImageNotFound       Code = "IMAGE_NOT_FOUND"
	ImageInUse          Code = "IMAGE_IN_USE"
	ImagePull           Code = "IMAGE_PULL"
	TooManyApps         Code = "TOO_MANY_APPS"
	TooManyStreams      Code = "TOO_MANY_STREAMS"
	OutcomeUnknown      Code = "OUTCOME_UNKNOWN"
	StoreUnavailable    Code = "STORE_UNAVAILABLE"
	StoreConflict       Code = "STORE_CONFLICT"
	Deadline            Code = "DEADLINE"
	Unauthenticated     Code = "UNAUTHENTICATED"
	ForeignOrigin       Code = "FOREIGN_ORIGIN"
	Internal            Code = "INTERNAL"
)

// The codes of a client's own side, which no API sends.
const (
	// Unreachable means that no node answered, or not to the end.
	Unreachable Code = "UNREACHABLE"
	// NotANode means that what answered is no node of Errand.
	NotANode Code = "NOT_A_NODE"
	// Archive means that the archive of an image could not be read.
	Archive Code = "ARCHIVE"
)

// Meaning is one line of the table.
type Meaning struct {
	Code Code
	// Class is the code of the protocol that the error travels under.
	Class connect.Code
	// Text is one sentence for the documentation.
	Text string
	// Repeat tells whether the same call may succeed later, if not on this node.
	Repeat bool
}

// All returns a copy of the table of the API's codes, in the order of the documentation.
func All() []Meaning { return append([]Meaning(nil), table[:]...) }

// Of returns the line of a code; ok is false for one that the table does not have.
func Of(code Code) (line Meaning, ok bool) {
	for _, line := range table {
		if line.Code == code {
			return line, true
		}
	}
	return Meaning{}, false
}

var table = [...]Meaning{
	{InvalidField, connect.CodeInvalidArgument, "A field of the request is wrong; the detail lists which and why.", false},
	{RequestTooLarge, connect.CodeResourceExhausted, "The request, or one message of an upload, is larger than the node reads.", false},
	{InvalidPageToken, connect.CodeInvalidArgument, "The page token is not one, or belongs to a list with other filters.", false},
	{IdempotencyConflict, connect.CodeAlreadyExists, "The idempotency key was used before with another request.", false},
	{RunDeleted, connect.CodeFailedPrecondition, "The run was there and has been deleted.", false},
	{RunNotFound, connect.CodeNotFound, "No run has this id or prefix.", false},
	{RunAmbiguous, connect.CodeInvalidArgument, "Several runs begin with this prefix.", false},
	{RunTerminal, connect.CodeFailedPrecondition, "The run has ended, so it can be neither canceled nor attached to.", false},
	{RunNotRunning, connect.CodeFailedPrecondition, "The run does not run, so there is no sandbox to look into.", false},
	{RunElsewhere, connect.CodeUnavailable, "The run runs on another node, which the text names.", true},
	{RunNoInput, connect.CodeFailedPrecondition, "The run's command was made without an input.", false},
	{RunAttached, connect.CodeFailedPrecondition, "Somebody else has the run's input, or has taken it.", false},
	{NotSupported, connect.CodeUnimplemented, "The run's driver can not do this.", false},
	{FileNotFound, connect.CodeNotFound, "The sandbox has no such file or directory.", false},
	{FileUnreadable, connect.CodeInternal, "A file can not be read; the text says why.", false},
	{AttemptNotFound, connect.CodeNotFound, "The run has no attempt of this number.", false},
	{LogElsewhere, connect.CodeUnavailable, "The log lies on another node, which the text names.", true},
	{LogUnreadable, connect.CodeInternal, "The log's files can not be read.", true},
	{LogLost, connect.CodeDataLoss, "The command was started and there is no log of it: no output was recorded, or its files are gone. The text tells which.", false},
	{ListAgain, connect.CodeOutOfRange, "What changed since this position can not be told any more, or the position is another store's: list again and go on from that list's position.", false},
	{NodeNotFound, connect.CodeNotFound, "No node of this name is registered.", false},
	{NodeHasSession, connect.CodeFailedPrecondition, "The node has a session, so it is not known to be dead: its daemon is to be stopped first, or its machine switched off.", false},
	{NodeStopping, connect.CodeUnavailable, "The node is stopping; call again and it, or another, goes on.", true},
	{NoImages, connect.CodeFailedPrecondition, "The node keeps no images: its containerd driver is not enabled.", false},
	{ImageInvalid, connect.CodeInvalidArgument, "The archive is cut short, holds no image, or unpacks to far more than it is.", false},
	{ImageTooLarge, connect.CodeResourceExhausted, "The archive is larger than the node accepts.", false},
	{ImageNotFound, connect.CodeNotFound, "The node has no such image, or its registry has none for this machine.", false},
	{ImageInUse, connect.CodeFailedPrecondition, "A sandbox is made of the image.", false},
	{ImagePull, connect.CodeUnavailable, "The registry refuses, fails or hangs; the text has its answer. Another pull goes on where this one stopped.", true},
	{TooManyApps, connect.CodeResourceExhausted, "The answer would need every app to be searched and there are too many: name the app.", false},
	{TooManyStreams, connect.CodeResourceExhausted, "The node serves as many streams as it may.", true},
	{OutcomeUnknown, connect.CodeUnavailable, "The store did not say whether the change was made. Repeat it with the same idempotency key.", true},
	{StoreUnavailable, connect.CodeUnavailable, "The store could not be asked; nothing was changed.", true},
	{StoreConflict, connect.CodeAborted, "Another writer came first.", true},
	{Deadline, connect.CodeDeadlineExceeded, "The call took longer than it may.", true},
	{Unauthenticated, connect.CodeUnauthenticated, "The token is missing or wrong.", false},
	{ForeignOrigin, connect.CodePermissionDenied, "The request comes from a web page of another origin, or under another host's name.", false},
	{Internal, connect.CodeInternal, "A fault of Errand.", false},
}
