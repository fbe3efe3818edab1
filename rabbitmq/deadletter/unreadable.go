package deadletter

import (
	"errors"
	"fmt"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

// A caution is what a call has learned about letters that end the connection that they are delivered on. What is
// fetched with such a letter comes back, and may be sent twice.
type caution struct {
	careful bool // a letter has done so: those behind the first ones are fetched one at a time
	// first is how many letters are fetched together. It is 0 where letters are removed: the broker delivers another one
	// for each acknowledgement.
	first int
}

var (
	// errCareful is the error of a look that the call repeats with more caution.
	errCareful = errors.New("letters are now read one at a time")
	// errUnreadable is the error of a look that has found the letter.
	errUnreadable = errors.New("cannot be read, so it and the letters behind it stay")
)

// after returns the error of a look. Where a letter has ended the connection, that is errCareful at first, and then an
// error that names the letter.
func (c *caution) after(l *look, err error) error {
	reason := endedByLetter(l.connection)
	if reason == nil || errors.Is(err, errCareful) || errors.Is(err, errUnreadable) {
		return err
	}
	if l.single() {
		return fmt.Errorf("the letter at place %d of %q %w. Redrive, or export and discard, those before it, and "+
			"then remove it: %w", l.unsettled()+1, l.queue, errUnreadable, reason)
	}
	if c.careful { // it is among the first ones now
		c.first = 0
	} else if c.careful = true; l.settled.members() == 0 {
		c.first = l.received
	}
	return fmt.Errorf("%w: %w: %w", errLost, errCareful, reason)
}

// endedByLetter returns the reason of a connection that was closed because of a message that was delivered on it.
func endedByLetter(c *wire.Connection) error {
	if !c.Client.IsClosed() {
		return nil
	}
	return ofLetter(c.CloseReason())
}

// ofLetter returns the reason of a closed connection where a message was that.
func ofLetter(reason error) error {
	switch {
	case errors.Is(reason, wire.ErrUnreadable):
		return reason
	case refusal.IsCrash(reason): // such as by a property that AMQP 0-9-1 does not have
		return fmt.Errorf("the broker cannot deliver it: docs/limits.md#messages-that-go-clients-cannot-read: %w", reason)
	}
	return nil
}

// single reports whether letters are now fetched one at a time.
func (l *look) single() bool { return l.caution.careful && l.received >= l.caution.first }

// unsettled is how many letters of the look, and of the one that it is a part of, are fetched and not acknowledged.
func (l *look) unsettled() int {
	n := l.received - l.settled.members()
	if l.of != nil {
		n += l.of.unsettled()
	}
	return n
}

// ahead is how many letters the next consumer fetches at most.
func (l *look) ahead() int {
	window := l.window
	if rest := l.caution.first - l.received; rest > 0 {
		window = min(window, rest)
	} else if l.caution.careful {
		window = 1
	}
	return max(min(window, l.left), 1) // what comes behind the letters to look at is not fetched
}
