package reconnect_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
)

// The limits of amqp091-go when it reads. It writes more, as other clients do. When it reads more, it closes the connection.
const (
	maxLevels   = 32
	maxElements = 8192
)

// unreadable contains headers that RabbitMQ accepts and amqp091-go cannot read.
var unreadable = map[string]amqp091.Table{
	"nested":   {"h": nested(maxLevels + 1)},
	"elements": {"h": make([]any, maxElements+1)},
	"headers":  headers(maxElements + 1),
}

func nested(levels int) any {
	if levels == 0 {
		return "deep"
	}
	return []any{nested(levels - 1)}
}

func headers(n int) amqp091.Table {
	table := amqp091.Table{}
	for i := range n {
		table[strconv.Itoa(i)] = nil
	}
	return table
}

const (
	poison     = "poison"
	neighbours = 100
	handlers   = 4
)

// TestHeadersThatGoCannotRead: every delivery breaks the connection of all handlers of the app, until the delivery limit is
// reached. Then the broker dead-letters the message, and the others are processed.
func TestHeadersThatGoCannotRead(t *testing.T) {
	t.Parallel()
	for name, poisonous := range unreadable {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := testapp.NewParts(t)
			queue := a.Queue("orders")
			processed := testapp.NewLedger()
			a.Handle(queue, handlers, func(msg *message.Message) error {
				processed.Add(string(msg.Payload))
				return nil
			})
			began := time.Now()
			a.Run()
			orders := testapp.Orders(neighbours)
			testapp.Send(t, "", queue, orders[:neighbours/2]...)
			testapp.Send(t, "", queue, amqp091.Publishing{Body: []byte(poison), Headers: poisonous})
			testapp.Send(t, "", queue, orders[neighbours/2:]...)
			broker.Eventually(t, 2*time.Minute, func() bool { return testapp.Depth(t, queue+".dead") == 1 }, "the broker dead-letters the message")
			rate := float64(a.Log.Count("reconnecting")) / time.Since(began).Seconds() / handlers
			assert.Less(t, rate, 5.0, "no hot loop: watermill-amqp pauses before it reconnects")
			processed.Wait(t, neighbours, time.Minute)
			testapp.Eventually(t, func() bool {
				info, err := broker.Queue(broker.Management(t), queue)
				return err == nil && info.Messages == 0
			}, "the queue is empty")
			assert.Equal(t, 1, testapp.Depth(t, queue+".dead"), "no other message is dead-lettered")

			connection := broker.Connect(t) // a Go client that reads the dead letters cannot read it either
			closed := connection.NotifyClose(make(chan *amqp091.Error, 1))
			channel, err := connection.Channel()
			require.NoError(t, err)
			_, _ = channel.Consume(queue+".dead", "", false, false, false, false, nil)
			err = broker.Receive(t, closed, "amqp091-go cannot read these headers; if it can, change the documentation")
			assert.ErrorContains(t, err, "invalid field or value inside of a frame")
		})
	}
}
