package publisher

import (
	"context"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/channeltest"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

const soon = 60 * time.Second

// The test of a confirming broker decides what happens to each message.
type confirming struct {
	t *testing.T
	*channeltest.Broker
}

func serveConfirms(t *testing.T) confirming {
	t.Helper()
	return confirming{t, channeltest.Serve(t)}
}

func (b confirming) next() channeltest.Message {
	b.t.Helper()
	return receiveFrom(b.t, b.Published)
}

func receiveFrom[T any](t *testing.T, c <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-c:
	case <-time.After(soon):
		require.FailNow(t, "the client did not do what the test expects")
	}
	return value
}

func (b confirming) nothing() {
	b.t.Helper()
	select {
	case m := <-b.Published:
		require.FailNow(b.t, "a message was published", m.Body)
	case <-time.After(200 * time.Millisecond):
	}
}

func (b confirming) open(maxInFlight int) *Connection {
	b.t.Helper()
	c, err := Open(Config{Wire: wire.Config{URI: "amqp://user:password@" + b.Address}, MaxInFlight: maxInFlight}, nil)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { require.NoError(b.t, c.Close()) })
	return c
}

// opened returns a connection to such a broker. The test runs beside others.
func opened(t *testing.T, maxInFlight int) (confirming, *Connection) {
	t.Helper()
	t.Parallel()
	b := serveConfirms(t)
	return b, b.open(maxInFlight)
}

// send sends in the background; within is how long the caller waits.
func send(t *testing.T, c *Connection, body string, within time.Duration) <-chan error {
	result := make(chan error, 1)
	go func() { result <- c.SendOne(timed(t, body, within)) }()
	return result
}

func timed(t *testing.T, body string, within time.Duration) Message {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	t.Cleanup(cancel)
	return messageOf(ctx, body)
}

func messageOf(ctx context.Context, body string) Message {
	return Message{Context: ctx, RoutingKey: "queue", UUID: body, Publishing: amqp091.Publishing{Body: []byte(body)}}
}
