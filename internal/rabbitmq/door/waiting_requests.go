package door

import (
	"context"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

// bounded makes the AMQP requests of one look. The broker closes its channel when it refuses one: the next request
// opens another.
type bounded struct {
	open     func() (*amqp091.Channel, error)
	ctx      context.Context
	until    time.Time // when no further request begins
	requests int
	channel  *amqp091.Channel
	failed   error // there is no channel
}

// used reports whether the requests or the time of the look are used up. It has time for one request at least.
func (b *bounded) used() bool {
	return b.requests >= mostRequests || b.requests > 0 && !time.Now().Before(b.until)
}

func (b *bounded) ready() error {
	if b.failed == nil {
		b.failed = context.Cause(b.ctx)
	}
	if b.failed == nil && (b.channel == nil || b.channel.IsClosed()) {
		b.channel, b.failed = b.open()
	}
	b.requests++
	return b.failed
}

func (b *bounded) declare(queue string) (state amqp091.Queue, err error) {
	if err = b.ready(); err == nil {
		state, err = b.channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err != nil && wire.IsLost(err) {
			b.failed = err
		}
	}
	return state, err
}

// lost reports whether no further request can succeed.
func (b *bounded) lost() bool { return b.failed != nil }

func (b *bounded) close() {
	if b.channel != nil {
		_ = b.channel.Close()
	}
}
