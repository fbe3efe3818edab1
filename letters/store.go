package letters

import (
	"context"
	"errors"
	"iter"
)

// A Store is the dead letters of a backend. It is safe for concurrent use.
type Store interface {
	// Browse returns the letters that are in a queue, the oldest first, and removes none. A loop may end early. After
	// an error the iteration ends. The letters of a loop are away from other readers of the queue until the loop
	// ends.
	Browse(ctx context.Context, queue string, filter Filter) iter.Seq2[*Letter, error]

	// Redrive sends letters back to where they failed, and removes each one after the broker has confirmed it. It
	// looks only at the letters that are in the queue when it begins. The message is the same as before, without its
	// failure record: its retries begin anew. The Summary adds up with an error, too. The end of the context ends the
	// call with the context's error, after the letters in flight.
	Redrive(ctx context.Context, queue string, options Redrive) (Summary, error)

	// Discard removes letters.
	Discard(ctx context.Context, queue string, options Discard) (Summary, error)

	// Close ends all calls and closes the connections of the Store.
	Close() error
}

var (
	// ErrNoQueue is returned when the queue or topic of the letters does not exist.
	ErrNoQueue = errors.New("the queue does not exist")
	// ErrBusy is returned when another redrive or discard runs on the same queue.
	ErrBusy = errors.New("another command changes this queue")
	// ErrNoTarget is returned when the work queue of a letter does not exist or is unknown. The letter stays.
	ErrNoTarget = errors.New("the letter's work queue is not there")
	// ErrRedead is returned when the canary, or more letters than MaxRedead, have died again. Letters that were not
	// sent stay.
	ErrRedead = errors.New("redriven letters have died again")
	// ErrClosed is returned by the methods of a Store that is closed.
	ErrClosed = errors.New("the store is closed")
)
