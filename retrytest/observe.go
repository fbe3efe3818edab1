package retrytest

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
)

type visitKey struct{}

func visitOf(msg *message.Message) *visit {
	v, _ := msg.Context().Value(visitKey{}).(*visit)
	return v
}

// errUnwound is what is known of a handler that has not returned: the retry middleware or the router knows more.
var errUnwound = errors.New("panicked, or ended its goroutine")

// observe is a middleware that notes who handles a message, and changes nothing. It may be above the retry middleware or below.
func (a *App) observe(outermost bool) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) (produced []*message.Message, err error) {
			v := visitOf(msg)
			if v == nil {
				return h(msg)
			}
			a.ledger.call(v, message.HandlerNameFromCtx(msg.Context()))
			returned := false
			defer func() {
				switch {
				case returned:
					a.ledger.end(v, err, false)
				case outermost:
					a.ledger.end(v, errUnwound, true)
				default:
					a.ledger.end(v, nil, false)
				}
			}()
			produced, err = h(msg)
			returned = true
			return produced, err
		}
	}
}

// settled waits for the acknowledgement: the router sends it after it has published what the handler produced.
func (a *App) settled(v *visit, msg *message.Message) {
	select {
	case <-msg.Acked():
		a.ledger.settle(v, true)
	case <-msg.Nacked():
		a.ledger.settle(v, false)
	case <-a.closed:
	}
}
