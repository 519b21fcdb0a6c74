package pipeline

import (
	"errors"
	"fmt"
)

// Errors that the stages share.
var (
	// ErrFenced means that another process has acquired the lane. Stop: it goes on from here.
	ErrFenced = errors.New("another process has taken the lane over")
	// ErrTrimmed means that the stream no longer holds the records.
	ErrTrimmed = errors.New("the stream no longer holds these records")
	// ErrNotFound means that an object is gone, or is not the one that was listed.
	ErrNotFound = errors.New("the object is gone")
	// ErrExists means that an object of that name exists already.
	ErrExists = errors.New("the object exists already")
	// ErrWindowClosed means that a window takes no more claims.
	ErrWindowClosed = errors.New("the window takes no more claims")
)

// A PersonError needs a person: restarting does not help. Do says what to do.
type PersonError struct {
	Err error
	Do  string
}

// NeedPerson returns a PersonError that ends in what to do.
func NeedPerson(err error, do string) error { return &PersonError{Err: err, Do: do} }

func (e *PersonError) Error() string { return fmt.Sprintf("%v: %s", e.Err, e.Do) }

func (e *PersonError) Unwrap() error { return e.Err }
