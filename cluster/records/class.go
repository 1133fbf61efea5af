package records

import (
	"errors"
	"fmt"
)

// Class is the short set of things that can go wrong outside the core. Adapters
// translate into it once; everything above switches on it, never on texts or
// transport codes.
type Class uint8

// The classes.
const (
	// ClassInternal is a fault of ours or one that nobody has classed.
	ClassInternal Class = iota
	// ClassNotFound says that the thing asked for does not exist.
	ClassNotFound
	// ClassConflict says that another writer came first.
	ClassConflict
	// ClassLostOwnership says that the caller no longer holds what it acts under.
	ClassLostOwnership
	// ClassUnavailable says that the other side could not be asked; nothing was
	// done.
	ClassUnavailable
	// ClassDeadline says that the caller's own deadline passed before anything
	// was done.
	ClassDeadline
	// ClassInvalid says that the request can never succeed as it is.
	ClassInvalid
	// ClassOutcomeUnknown says that it may have been done, or may yet be.
	ClassOutcomeUnknown
)

var classNames = [...]string{"internal", "not found", "conflict", "lost ownership", "unavailable", "deadline", "invalid", "outcome unknown"}

// String returns the class in words.
func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return fmt.Sprintf("class %d", uint8(c))
}

type classed struct {
	class Class
	err   error
}

func (e *classed) Error() string { return e.err.Error() }
func (e *classed) Unwrap() error { return e.err }

// Errorf makes an error of a class. Its text and wrapping are those of
// fmt.Errorf.
func Errorf(class Class, format string, args ...any) error {
	return &classed{class: class, err: fmt.Errorf(format, args...)}
}

// ClassOf returns the class that an error was given closest to its surface, and
// ClassInternal for one that was given none.
func ClassOf(err error) Class {
	var c *classed
	if errors.As(err, &c) {
		return c.class
	}
	return ClassInternal
}
