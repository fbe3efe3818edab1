package retrytest

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
)

// errUnwound is what the App knows of a panic that no middleware below it has recovered: the router logs it.
var errUnwound = errors.New("panicked, or ended its goroutine, above the retry middleware")

// observe is the router's outermost middleware. It changes nothing, but for messages that would come back for ever.
func (a *App) observe(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) (produced []*message.Message, err error) {
		v, known := a.ledger.begin(msg)
		switch {
		case !known:
			return h(msg)
		case v == nil:
			return nil, nil
		}
		go a.settled(v, msg)
		returned := false
		defer func() {
			if !returned {
				err = errUnwound
			}
			a.ledger.end(v, err)
		}()
		produced, err = h(msg)
		returned = true
		return produced, err
	}
}

// settled waits for the acknowledgement: the router sends it after it has published what the handler produced.
func (a *App) settled(v *visit, msg *message.Message) {
	select {
	case <-msg.Acked():
		a.ledger.settle(v, true)
	case <-msg.Nacked():
		a.ledger.settle(v, false)
	case <-a.ctx.Done():
	}
}
