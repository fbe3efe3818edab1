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
)

// declareTimeout is how long a message waits for a declaration.
const declareTimeout = 10 * time.Second

// Declarations declare what messages need on the broker: an exchange, or what a routing key of it leads to. At most one
// call for a destination is under way. A call that hangs stays, so that later messages join it and do not start another
// one.
type Declarations struct {
	connection *Connection
	name       string // of what declares, for errors

	mu    sync.RWMutex
	calls map[destination]*declaration // those under way, and of each exchange the last one without an error
}

// A destination is what a call is for: an exchange, or a routing key of one.
type destination struct{ exchange, routingKey string }

type declaration struct {
	on   *wire.Connection // where it has succeeded; nil: it is under way
	done chan struct{}
	err  error // set before done is closed
}

// NewDeclarations returns declarations with a name for errors. The functions that its methods get may use the channel
// until they return. A panic of them counts as an error.
func (c *Connection) NewDeclarations(name string) *Declarations {
	return &Declarations{connection: c, name: name, calls: make(map[destination]*declaration)}
}

// Exchange declares the message's exchange once on each connection, and again after ExchangeAgain has failed. It
// returns a *publish.Error. The default exchange always exists.
func (d *Declarations) Exchange(m *Message, declare func(*amqp091.Channel, string) error) error {
	if m.Exchange == "" {
		return nil
	}
	for {
		state := d.connection.link.State()
		if state.Connection == nil || d.connection.ctx.Err() != nil {
			return d.connection.unconnected(m, state)
		}
		to := destination{exchange: m.Exchange}
		if d.has(to, state.Connection) { // of makes a function
			return nil
		}
		call := d.start(to, state.Connection, of(declare, m.Exchange))
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
	err := d.await(m.Context, d.start(to, nil, declare))
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

// has reports whether the last call has succeeded on a connection.
func (d *Declarations) has(to destination, on *wire.Connection) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	last := d.calls[to]
	return last != nil && last.on == on
}

// start starts a call, or joins the one under way. It returns nil where the last one has succeeded on the connection
// unless. Nil: it starts one all the same.
func (d *Declarations) start(
	to destination, unless *wire.Connection, declare func(*amqp091.Channel) error,
) *declaration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if call := d.calls[to]; call != nil && call.on == nil {
		return call
	} else if call != nil && call.on == unless {
		return nil
	}
	call := &declaration{done: make(chan struct{})}
	d.calls[to] = call
	// Not one of the connection's workers: the function may never return, and Close must return.
	go func() {
		var c *wire.Connection
		c, call.err = d.run(declare)
		d.mu.Lock()
		if call.on = c; call.err != nil || to.routingKey != "" {
			delete(d.calls, to)
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
