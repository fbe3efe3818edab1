package dispatch

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
)

func arrivalOf(uuid string, headers amqp091.Table) *Arrival {
	return &Arrival{Msg: message.NewMessage(uuid, nil), Delivery: amqp091.Delivery{Headers: headers}}
}

func TestNacksAreCountedForEachMessage(t *testing.T) {
	t.Parallel()
	c := newNackCounts()
	for i := range int64(3) {
		assert.Equal(t, i, c.count(arrivalOf("a", nil)))
	}
	assert.Zero(t, c.count(arrivalOf("b", nil)))
	c.forget(arrivalOf("a", nil))
	assert.Zero(t, c.count(arrivalOf("a", nil)))
	assert.EqualValues(t, 1, c.count(arrivalOf("b", nil)))

	assert.EqualValues(t, 7, c.count(arrivalOf("c", amqp091.Table{"x-delivery-count": int64(7)})), "the broker knows more")
	assert.EqualValues(t, 9, c.count(arrivalOf("d", amqp091.Table{"x-delivery-count": int64(7), "x-acquired-count": int32(9)})))
	assert.EqualValues(t, 0, c.count(arrivalOf("e", amqp091.Table{"x-delivery-count": int64(-7), "x-acquired-count": "9"})))

	unnamed := func(body, id string) *Arrival {
		return &Arrival{Delivery: amqp091.Delivery{Body: []byte(body), MessageId: id}}
	}
	assert.EqualValues(t, 0, c.count(unnamed("body", "")))
	assert.EqualValues(t, 1, c.count(unnamed("body", "")))
	assert.EqualValues(t, 0, c.count(unnamed("other", "")))
	assert.EqualValues(t, 0, c.count(unnamed("other", "id")))
	assert.EqualValues(t, 1, c.count(unnamed("body", "id")))
}

func TestTheNumberOfCountsIsBounded(t *testing.T) {
	t.Parallel()
	c := newNackCounts()
	for i := range 10 * maxCounts {
		c.count(arrivalOf(fmt.Sprint(i), nil))
		if i%3 == 0 {
			c.forget(arrivalOf(fmt.Sprint(i), nil))
		}
		if len(c.by) > maxCounts || len(c.old) > maxCounts {
			t.Fatalf("%d counts, and %d older ones", len(c.by), len(c.old))
		}
	}
	assert.EqualValues(t, 1, c.count(arrivalOf(fmt.Sprint(10*maxCounts-2), nil)), "the last ones are known")
}
