package rabbitmq

import (
	"context"
	"errors"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// bounded makes the AMQP requests of one look. The broker closes its channel when it refuses one: the next request opens another.
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
		b.noteLoss(err)
	}
	return state, err
}

// get fetches the first message of a queue and gives it back. Between the two is no other request: others wait for the message. Before,
// it asks how many there are: RabbitMQ states 0 for a quorum queue without a leader, and would close the connection because of a get.
func (b *bounded) get(queue string) (first amqp091.Delivery, found bool, err error) {
	if state, err := b.declare(queue); err != nil || state.Messages == 0 {
		return first, false, err
	}
	if err = b.ready(); err == nil {
		if first, found, err = b.channel.Get(queue, false); found {
			err = first.Nack(false, true) // if it fails, the channel is closed, and the broker takes the message back
		}
		b.noteLoss(err)
	}
	return first, found, err
}

// noteLoss tells a refusal of the broker from the loss of the connection.
func (b *bounded) noteLoss(err error) {
	var refused *amqp091.Error
	if err != nil && (!errors.As(err, &refused) || !refused.Recover) {
		b.failed = err
	}
}

// lost reports whether no further request can succeed.
func (b *bounded) lost() bool { return b.failed != nil }

func (b *bounded) close() {
	if b.channel != nil {
		_ = b.channel.Close()
	}
}
