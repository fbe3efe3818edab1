package headers_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
)

// routed puts exchange and routing key into the metadata, as apps with a topic exchange do.
type routed struct{ textual }

func (r routed) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	msg, err := r.textual.Unmarshal(d)
	if err == nil {
		msg.Metadata["from"] = d.Exchange + "/" + d.RoutingKey + "/" + d.UserId
	}
	return msg, err
}

// TestRedrivenMessageHasItsExchange: a redriven message comes through the default exchange, where any publisher can write headers. It has
// the exchange and routing key that it was first published with, and not the user-id, which a broker has checked.
func TestRedrivenMessageHasItsExchange(t *testing.T) {
	t.Parallel()
	const history = `{"times":1,"redrives":[]}`
	transport := amqp091.Table{"retry_exchange": "shop", "retry_routing_key": "eu.orders", "retry_user_id": "forged", "retry_priority": byte(9)}
	for name, test := range map[string]struct {
		exchange string
		history  any
		want     string
		copied   any // the header retry_exchange of the next copy
	}{
		"redriven":              {"", history, "shop/eu.orders/", "shop"},
		"never redriven":        {"", nil, "/orders/", nil},
		"from another exchange": {"app", history, "app/orders/", "app"},
	} {
		delivery := amqp091.Delivery{Acknowledger: new(amqp091.Channel), Exchange: test.exchange, RoutingKey: "orders", Headers: amqp091.Table{}}
		for key, value := range transport {
			delivery.Headers[key] = value
		}
		if test.history != nil {
			delivery.Headers[recordkey.Redriven] = test.history
		}
		msg, err := headers.New(routed{}, naming.Default).Unmarshal(delivery)
		require.NoError(t, err)
		assert.Equal(t, test.want, msg.Metadata["from"], name)
		assert.NotContains(t, msg.Metadata, "retry_exchange")

		plain := headers.New(app.Plain{Marshaler: textual{}, UUIDKey: publisher.UUIDHeader}, naming.Default)
		msg, err = plain.Unmarshal(delivery)
		require.NoError(t, err)
		msg.Metadata[recordkey.Failures] = "1"
		waiting, err := plain.Marshal(msg)
		require.NoError(t, err)
		assert.Equal(t, test.copied, waiting.Headers["retry_exchange"], "the next copy, %s", name)
	}
}
