package main

import (
	"errors"
	"io"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backends/conformance/pubsub"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

var errMeasured = errors.New("this call is to fail")

// own is the library.
func (w worker) own(router *message.Router, c *calls) (io.Closer, error) {
	backend, err := find(w.Backend)
	if err != nil {
		return nil, err
	}
	retries, err := backend.pubSub(w.Server).Connect(pubsub.App{
		Group: group, Prefix: w.Prefix, Policy: retry.Policy{Schedule: backoff.Schedule{tier}},
	})
	if err != nil {
		return nil, err
	}
	handle := func(msg *message.Message) error {
		record, _ := retry.ReadRecord(msg.Metadata)
		delay, fails := c.handle(msg.UUID, record.Failures)
		switch {
		case !fails:
			return nil
		case c.start.Due > 0:
			return backoff.RetryAfter(errMeasured, delay)
		default:
			return errMeasured
		}
	}
	if w.Copies {
		retries.Observe(observer{calls: c})
	}
	retries.AddConsumerHandler(router, "billing", w.Topic, handle)
	return retries, nil
}

// observer reports the copies.
type observer struct {
	calls *calls
}

// Event implements retry.Observer.
func (o observer) Event(e retry.Event) {
	if e.Outcome == retry.Retried {
		number, _ := strconv.ParseInt(e.MessageUUID, 10, 64)
		o.calls.report(call{Message: copied, Failures: number})
	}
}
