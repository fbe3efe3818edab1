package retrytest

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
)

// errNotReturned is the error of a handler that did not return. The router logs the panic.
var errNotReturned = errors.New("panicked, or ended its goroutine")

// observeHandler is a middleware that records the call of a handler. It changes nothing. Outermost: no middleware
// outside of it recovers a panic.
func (a *App) observeHandler(outermost bool) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) (produced []*message.Message, err error) {
			d := deliveryOf(msg)
			if d == nil {
				return h(msg)
			}
			a.ledger.handlerCalled(d, message.HandlerNameFromCtx(msg.Context()))
			returned := false
			defer func() {
				settled := isSettled(msg)
				switch {
				case returned:
					a.ledger.handlerReturned(d, err, false, settled)
				case outermost:
					a.ledger.handlerReturned(d, errNotReturned, true, settled)
				case settled:
					// no copy follows, which would have the error
					a.ledger.handlerReturned(d, errNotReturned, false, true)
				default:
					a.ledger.handlerReturned(d, nil, false, false)
				}
			}()
			produced, err = h(msg)
			returned = true
			return produced, err
		}
	}
}

// isSettled reports whether the message is acked or nacked. The router does that after the handler has returned.
func isSettled(msg *message.Message) bool {
	select {
	case <-msg.Acked():
	case <-msg.Nacked():
	default:
		return false
	}
	return true
}
