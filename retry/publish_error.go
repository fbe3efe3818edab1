package retry

// PublishError is why a copy was not published. A backend returns it to the retry middleware. A publisher that is given
// to package relay may return it, or an error that wraps it.
type PublishError struct {
	Kind ErrorKind
	Err  error // never nil
}

// ErrorKind is what a further try with the same message can do.
type ErrorKind int

const (
	KindTemporary   ErrorKind = iota // it has not arrived, and a further try can succeed
	KindClosed                       // the publisher is closed: every further try fails
	KindTooLarge                     // it does not fit to this destination: no further try there can succeed
	KindRefused                      // no further try can succeed, to any destination
	KindRejected                     // this destination refuses it, and another one may take it
	KindUnconfirmed                  // it may have arrived: a further try may deliver it twice
)

// ForGood reports whether no further try with the same message can succeed: it is too large or refused.
func (k ErrorKind) ForGood() bool { return k == KindTooLarge || k == KindRefused }

// Error returns the text of Err.
func (e *PublishError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *PublishError) Unwrap() error { return e.Err }
