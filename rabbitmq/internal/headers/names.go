package headers

import (
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq/publisher"
)

// Headers of a copy, besides recordHeader. They are read only from a delivery that came through the return exchange; the app never
// sees them.
const (
	userIDHeader     = "retry_user_id"     // a user-id other than the connection's closes the channel
	exchangeHeader   = "retry_exchange"    // the exchange that the message was first published to
	routingKeyHeader = "retry_routing_key" // and its routing key
	priorityHeader   = "retry_priority"    // on RabbitMQ 4.0 a message with a priority delays the others of its tier

	// rawHeader is why the app's marshaler could not marshal a dead letter. Its body is then the payload, its headers are the
	// metadata, and publisher.UUIDHeader is the UUID. Only readers of dead letters look at it.
	rawHeader = "retry_marshal_error"
)

// isTransport reports whether a header or metadata key belongs to the library. The app never sees such a header.
func isTransport(key string) bool {
	switch key {
	case publisher.IDHeader, recordHeader, userIDHeader, exchangeHeader, routingKeyHeader, priorityHeader, rawHeader,
		middleware.PropertiesKey, middleware.UnmarshalErrorKey:
		return true
	}
	return false
}

// recordKeys are the keys of the failure record and of the history of redrives. They have to survive an app's marshaler that drops
// metadata.
var recordKeys = func() map[string]bool {
	keys := map[string]bool{middleware.RedrivenKey: true}
	for _, key := range middleware.RecordKeys() {
		keys[key] = true
	}
	return keys
}()

// isBroker reports whether a header is one that the broker sets or acts on: on a copy it would make the broker count, route or
// drop the message. watermill-amqp v3 adds the last of them.
func isBroker(key string) bool {
	switch key {
	case "x-delivery-count", "x-acquired-count", "CC", "BCC", "_watermill_amqp_redelivered":
		return true
	}
	return isDeath(key)
}

// isDeath reports whether a header is the broker's record of why it dead-lettered a message.
func isDeath(key string) bool {
	return key == "x-death" || strings.HasPrefix(key, "x-first-death-") || strings.HasPrefix(key, "x-last-death-")
}

// text returns a string header, or "".
func text(headers amqp091.Table, key string) string {
	value, _ := headers[key].(string)
	return value
}
