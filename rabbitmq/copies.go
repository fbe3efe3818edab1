package rabbitmq

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/suspect"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

// copies publishes the copies of failed messages. It declares a deleted tier or dead-letter queue again.
type copies struct {
	core       *core
	marshaler  app.Marshaler
	connection *publisher.Connection
	queues     *publisher.Declarations // nil with VerifyOnly
}

func newCopies(c *core, connection *publisher.Connection) copies {
	p := copies{core: c, connection: connection, marshaler: headers.New(c.app.Marshaler, c.prefix)}
	if !c.verifyOnly {
		p.queues = connection.NewDeclarations("the declaration of the retry topology", c.redeclare)
	}
	return p
}

// Publish implements message.Publisher. The topic is a routing key.
func (p copies) Publish(routingKey string, messages ...*message.Message) error {
	failures := make([]error, len(messages))
	for i, msg := range messages {
		failures[i] = ofCopy(p.publish(routingKey, msg))
	}
	return join(failures)
}

func (p copies) publish(routingKey string, msg *message.Message) error {
	began := time.Now()
	exchange, group := p.core.route(routingKey)
	m := publisher.Message{
		Context: msg.Context(), Exchange: exchange, RoutingKey: routingKey, UUID: msg.UUID,
		Room: headers.Room(p.core.prefix, group, routingKey), Suspect: suspect.Of(msg.Context()),
	}
	var err error
	if m.Publishing, err = p.marshaler.Marshal(msg); err != nil {
		return m.Failure(publish.ErrRefused, err)
	}
	excess, err := p.connection.Excess(&m)
	if err != nil {
		return err
	}
	if excess > 0 {
		headers.Shrink(&m.Publishing, excess)
	}
	err = p.connection.SendOne(m)
	if p.queues == nil || !errors.Is(err, publish.ErrUnroutable) {
		return err
	}
	var cancel context.CancelFunc
	m.Context, cancel = context.WithDeadline(m.Context, began.Add(p.connection.ConfirmTimeout()))
	defer cancel()
	if err := p.queues.Again(&m, err); err != nil {
		return err
	}
	if m.Suspect == nil {
		m.Suspect = &atomic.Bool{}
	}
	m.Suspect.Store(m.Suspect.Load() || publisher.NoExchange(err))
	return p.connection.SendOne(m)
}

// Close implements message.Publisher: it closes the connection.
func (p copies) Close() error { return p.connection.Close() }

// route returns the exchange of a copy, and the group of tiers of its work queue, or the work queue itself.
func (c *core) route(routingKey string) (exchange, group string) {
	queue, ok := naming.QueueOfKey(routingKey)
	group = c.groupOf(queue)
	if ok && group != queue && !naming.IsDeadKey(routingKey) {
		return c.prefix.GroupExchange(group), group
	}
	return c.prefix.RetryExchange(), group
}

// ofCopy returns the error of a copy, as the retry middleware reads it.
func ofCopy(err error) error {
	var failed *publish.Error
	if !errors.As(err, &failed) {
		return err
	}
	return &retry.PublishError{Kind: failed.Kind(), Err: err}
}

// join returns nil where no message has failed, and the error of a single one as it is.
func join(failures []error) error {
	failures = slices.DeleteFunc(failures, func(err error) bool { return err == nil })
	if len(failures) == 1 {
		return failures[0]
	}
	return errors.Join(failures...)
}
