package main

import (
	"errors"
	"io"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backends/conformance/pubsub"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

var errMeasured = errors.New("this call is to fail")

// own is the library.
func (w worker) own(b backend, router *message.Router, c *calls) (io.Closer, error) {
	opened, err := b.pubSub(w.Server)
	if err != nil {
		return nil, err
	}
	retries, err := opened.Connect(pubsub.App{
		Group: group, Prefix: "retry", Policy: retry.Policy{Schedule: backoff.Schedule{tier}},
	})
	if err != nil {
		return nil, err
	}
	retries.AddConsumerHandler(router, "billing", topic, func(msg *message.Message) error {
		record, _ := retry.ReadRecord(msg.Metadata)
		if c.handle(msg.UUID, record.Failures) {
			return errMeasured
		}
		return nil
	})
	return retries, nil
}
