//go:build !race

// With the race detector a sync.Pool drops what it gets.

package headers_test

import (
	"strconv"
	"testing"

	amqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
)

// TestUnmarshalAllocates at most once more than watermill-amqp's own marshaler.
func TestUnmarshalAllocates(t *testing.T) {
	for _, first := range firstDeliveries {
		first.delivery.Acknowledger = new(amqp091.Channel)
		stock := testing.AllocsPerRun(1000, func() { unmarshal(t, amqp.DefaultMarshaler{}, first.delivery) })
		for name, m := range unmarshalers() {
			if name != "watermill-amqp" {
				for i := range 1000 { // they must not take the place of properties that many messages have
					other := first.delivery
					other.MessageId = strconv.Itoa(i)
					unmarshal(t, m, other)
				}
				allocates := testing.AllocsPerRun(1000, func() { unmarshal(t, m, first.delivery) })
				assert.LessOrEqual(t, allocates, stock+first.more, "%s, %s", first.name, name)
			}
		}
	}
}
