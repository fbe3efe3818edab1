package publisher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

// declareTimeout is how long a message waits for a declaration.
const declareTimeout = 10 * time.Second

// Declarations declare what messages need on the broker: an exchange, or what a routing key of it leads to. At most one
// call for a destination is under way. A call that hangs stays, so that later messages join it and do not start another
// one.
type Declarations struct {
	connection *Connection
	name       string // of what declares, for errors

	mu       sync.RWMutex
	underWay map[destination]*declaration
	declared map[destination]*wire.Connection // the connection of the last call without an error
}

// A destination is what a call is for: an exchange, or a routing key of one.
type destination struct{ exchange, routingKey string }

type declaration struct {
	done chan struct{}
	err  error // set before done is closed
}

// NewDeclarations returns declarations with a name for errors. The functions that its methods get may use the channel
// until they return. A panic of them counts as an error.
func (c *Connection) NewDeclarations(name string) *Declarations {
	return &Declarations{
		connection: c, name: name,
		underWay: make(map[destination]*declaration), declared: make(map[destination]*wire.Connection),
	}
}

// Exchange declares the message's exchange once on each connection, and again after ExchangeAgain has failed. It
// returns a *publish.Error. The default exchange always exists.
func (d *Declarations) Exchange(m *Message, declare func(*amqp091.Channel, string) error) error {
	if m.Exchange == "" {
		return nil
	}
	for {
		state := d.connection.link.State()
		switch {
		case d.connection.ctx.Err() != nil:
			return m.Failure(retry.ErrClosed, nil)
		case state.Connection == nil:
			return m.Failure(publish.ErrNotConnected, state.Cause)
		}
		call := d.once(m.Exchange, state.Connection, declare)
		if call == nil {
			return nil
		}
		err := d.await(m.Context, call)
		switch {
		case err == nil: // on this connection, or on the one before
		case state.Connection.Blocked.Load():
			return m.Failure(publish.ErrBlocked, err)
		case state.Connection.Client.IsClosed():
			return m.Failure(publish.ErrNotConnected, err)
		default:
			return m.Failure(publish.ErrNotDeclared, err)
		}
	}
}

// ExchangeAgain declares the message's exchange, which does not exist. It returns nil when the message should be sent
// again, and else the error of the message.
func (d *Declarations) ExchangeAgain(
	m *Message, unroutable error, declare func(*amqp091.Channel, string) error,
) error {
	return d.again(m, destination{exchange: m.Exchange}, unroutable, of(declare, m.Exchange))
}

// Again declares what the message's routing key leads to. It returns nil when the message should be sent again, and
// else the error of the message.
func (d *Declarations) Again(m *Message, unroutable error, declare func(*amqp091.Channel) error) error {
	return d.again(m, destination{m.Exchange, m.RoutingKey}, unroutable, declare)
}

// of declares one exchange.
func of(declare func(*amqp091.Channel, string) error, exchange string) func(*amqp091.Channel) error {
	return func(channel *amqp091.Channel) error { return declare(channel, exchange) }
}

func (d *Declarations) again(
	m *Message, to destination, unroutable error, declare func(*amqp091.Channel) error,
) error {
	err := d.await(m.Context, d.anew(to, declare))
	if err == nil {
		return nil
	}
	failed := m.Failure(publish.ErrUnroutable, nil)
	var why *publish.Error
	if errors.As(unroutable, &why) {
		failed.Cause = why.Cause
	}
	failed.Redeclare, failed.Unsent = err, false
	return failed
}

// NoExchange reports whether a message failed because its exchange does not exist. The broker then closes the channel.
func NoExchange(err error) bool {
	var cause *amqp091.Error
	return errors.Is(err, publish.ErrUnroutable) && errors.As(err, &cause) && cause.Code == amqp091.NotFound
}

// await waits for a declaration, and returns its error or why the caller stops waiting.
func (d *Declarations) await(ctx context.Context, call *declaration) error {
	limit := time.NewTimer(declareTimeout)
	defer limit.Stop()
	select {
	case <-call.done:
		return call.err
	case <-ctx.Done():
		return ctx.Err()
	case <-limit.C:
		return timeoutError(fmt.Sprintf("%s did not return in time, within %s", d.name, declareTimeout))
	}
}

// once starts a call, or joins the one under way. It returns nil when there was one without an error on this
// connection.
func (d *Declarations) once(
	exchange string, c *wire.Connection, declare func(*amqp091.Channel, string) error,
) *declaration {
	to := destination{exchange: exchange}
	d.mu.RLock()
	declared := d.declared[to] == c
	d.mu.RUnlock()
	if declared {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.declared[to] == c {
		return nil
	}
	return d.start(to, of(declare, exchange))
}

// anew starts a call, or joins the one under way. Until it has succeeded, once does not return nil.
func (d *Declarations) anew(to destination, declare func(*amqp091.Channel) error) *declaration {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.declared, to)
	return d.start(to, declare)
}

func (d *Declarations) start(to destination, declare func(*amqp091.Channel) error) *declaration {
	if call := d.underWay[to]; call != nil {
		return call
	}
	call := &declaration{done: make(chan struct{})}
	d.underWay[to] = call
	// Not one of the connection's workers: the function may never return, and Close must return.
	go func() {
		var c *wire.Connection
		c, call.err = d.run(declare)
		d.mu.Lock()
		delete(d.underWay, to)
		if call.err == nil && to.routingKey == "" {
			d.declared[to] = c
		}
		d.mu.Unlock()
		close(call.done)
	}()
	return call
}

func (d *Declarations) run(declare func(*amqp091.Channel) error) (c *wire.Connection, err error) {
	c, err = d.connection.link.Now()
	if err != nil {
		return nil, err
	}
	channel, err := c.Client.Channel()
	if err != nil {
		return nil, err
	}
	defer func() { _ = channel.Close() }()
	return c, panics.Error(d.name, func() error { return declare(channel) })
}
