package headers

import (
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/unfit"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// Headers of a copy, besides recordHeader and those of package unfit. They are read only from a delivery that came
// through the return exchange or from a partition; the app never sees them.
const (
	exchangeHeader   = "retry_exchange"    // the exchange that the message was first published to
	routingKeyHeader = "retry_routing_key" // and its routing key

	// rawHeader is why the app's marshaler could not marshal a dead letter. Its body is then the payload, its headers
	// are the metadata, and publisher.UUIDHeader is the UUID. Only readers of dead letters look at it.
	rawHeader = "retry_marshal_error"
)

// isTransport reports whether a header or metadata key belongs to the library. The app never sees such a header.
func isTransport(key string) bool {
	switch key {
	case publisher.IDHeader, recordHeader, exchangeHeader, routingKeyHeader, rawHeader, recordkey.Properties,
		msgctx.BuilderKey,
		recordkey.UnmarshalError:
		return true
	}
	return unfit.IsKept(key)
}

// recordKeys are the keys of the failure record and of the history of redrives. They have to survive an app's marshaler
// that drops metadata.
var recordKeys = func() map[string]bool {
	keys := map[string]bool{recordkey.Redriven: true}
	for _, key := range retry.RecordKeys() {
		keys[key] = true
	}
	return keys
}()

// isBroker reports whether a header is one that the broker sets or acts on, and that is no part of the message.
func isBroker(key string) bool { return unfit.IsDropped(key) }

// text returns a string header, or "".
func text(headers amqp091.Table, key string) string {
	value, _ := headers[key].(string)
	return value
}
