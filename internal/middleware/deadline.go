package middleware

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tieredretry/watermill-retry/internal/warning"
)

// deadlines are those of the messages that one handler has got from a subscriber that is not one of this library. The
// context of a message is all that is known of such a subscription, and a middleware outside may have set its deadline.
// The messages of a subscription have one deadline, that of the context of Router.Run. A middleware sets another one
// for each message.
type deadlines struct {
	first  atomic.Int64 // in nanoseconds since 1970; 0: none
	differ atomic.Bool
}

// note reports whether a middleware outside sets the deadlines. A single one is taken for that of the subscription.
func (d *deadlines) note(at time.Time) (outside bool) {
	if n := at.UnixNano(); d.first.Load() != n && !d.first.CompareAndSwap(0, n) {
		d.differ.Store(true)
	}
	return d.differ.Load()
}

// noteDeadline warns once if a middleware outside has set the deadline of a message.
func (t *TieredRetry) noteDeadline(in *delivery, at time.Time) {
	outside := false
	if in.own != nil {
		subscribers, found := in.own.Deadline()
		outside = !found || at.Before(subscribers)
	} else {
		outside = in.deadlines.note(at)
	}
	if outside && !t.warned.Swap(true) {
		warning.Log(t.logger, "A middleware outside of the retry middleware has set a deadline, such as Timeout of a "+
			"router: a handler that exceeds it has failed. Add Timeout after the retry middleware", t.fields(in))
	}
}

// shuttingDown reports whether the subscription has ended.
func (d *delivery) shuttingDown() bool {
	if d.bound == nil || d.bound.Stopping == nil {
		switch d.ctx.Err() {
		case context.Canceled:
			return true
		case context.DeadlineExceeded:
			return !d.deadlines.differ.Load()
		default:
			return false
		}
	}
	select {
	case <-d.bound.Stopping:
		return true
	default:
		return false
	}
}
