// Package unpublished says why a copy was not published, and what a further try can do.
package unpublished

import "errors"

// Error is why a copy was not published. A backend returns it to the retry middleware.
type Error struct {
	Kind Kind
	Err  error // never nil
	Lost Lost  // what Unconfirmed has lost
}

// Lost is when no confirm can come any more. The zero value: it is not known.
type Lost struct {
	Channel, Connection <-chan struct{} // closed when it is lost; nil: not known
}

// Now reports whether the channel or the connection is lost.
func (l Lost) Now() bool {
	select {
	case <-l.Channel:
	case <-l.Connection:
	default:
		return false
	}
	return true
}

// ConnectionLost is of a copy that was on its way when its connection was lost.
var ConnectionLost = func() Lost {
	lost := make(chan struct{})
	close(lost)
	return Lost{Connection: lost}
}()

// An AwaitedError is why the wait for a confirm ended.
type AwaitedError struct {
	Err  error
	Lost Lost
}

// Error returns the text of Err.
func (e *AwaitedError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *AwaitedError) Unwrap() error { return e.Err }

// Kind is what a further try with the same message can do.
type Kind int

const (
	Temporary   Kind = iota // it has not arrived, and a further try can succeed
	Closed                  // the publisher is closed: every further try fails
	TooLarge                // it does not fit to this destination: no further try there can succeed
	Refused                 // no further try can succeed, to any destination
	Rejected                // this destination refuses it, and another one may take it
	Unconfirmed             // it may have arrived: a further try may deliver it twice
)

// KindOf returns the kind of Of.
func KindOf(err error) Kind {
	kind, _ := Of(err)
	return kind
}

// Of returns what an error says: Temporary where nothing in it says more.
func Of(err error) (kind Kind, lost Lost) {
	var failed *Error
	if errors.As(err, &failed) {
		return failed.Kind, failed.Lost
	}
	return Temporary, Lost{}
}

// A TooLargeError is why a message is refused when a smaller one would not be.
type TooLargeError struct{ Text string }

func (e *TooLargeError) Error() string { return e.Text }

// ForGood reports whether no further try with the same message can succeed: it is too large or refused.
func (k Kind) ForGood() bool { return k == TooLarge || k == Refused }

// Error returns the text of Err.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }
