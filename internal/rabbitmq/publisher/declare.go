package publisher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/panics"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/failure"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

const (
	// declareTimeout is how long a message waits for a declaration.
	declareTimeout = 10 * time.Second
	// restTime is how long a thing is not declared after its declaration has ended the connection, with all that is in
	// flight there: messages that need it come many at a time.
	restTime = time.Second
)

// Declarations declare what messages need on the broker: an exchange, or a queue. At most one call for each is under
// way. A call that hangs stays, so that later messages join it and do not start another one.
type Declarations struct {
	connection *Connection
	name       string // the name of what declares, for errors
	once       wire.Once[string]
	resting    sync.Map // *rest of each thing
}

// A rest is the time after a declaration that has ended its connection. The broker's codes for that are 501 to 541.
type rest struct {
	ends time.Time
	err  error // the declaration's
}

// NewDeclarations returns declarations with a name for errors. The functions that its methods get may use the channel
// until they return. A panic of them counts as an error.
func (c *Connection) NewDeclarations(name string) *Declarations {
	return &Declarations{connection: c, name: name}
}

// Exchange declares the message's exchange once on each connection, and again after Resend could not declare it. It
// returns a *failure.Error. The default exchange always exists.
func (d *Declarations) Exchange(m *Message, declare func(*amqp091.Channel, string) error) error {
	exchange := m.Exchange
	if exchange == "" {
		return nil
	}
	state := d.connection.link.State()
	on := state.Connection
	if on == nil || d.connection.ctx.Err() != nil {
		return d.connection.unconnected(m, state)
	}
	if !d.once.Began(on.Number(), exchange).IsZero() {
		return nil
	}
	err := d.do(m.Context, on, exchange, time.Time{}, func(channel *amqp091.Channel) error {
		return declare(channel, exchange)
	})
	switch {
	case err == nil:
		return nil
	case on.Blocked.Load():
		return m.Failure(publish.ErrBlocked, err)
	case on.Client.IsClosed():
		return m.Failure(publish.ErrNotConnected, err)
	}
	return m.Failure(publish.ErrNotDeclared, err)
}

// Resend declares what a message goes to, an exchange or a queue that does not exist, and sends the message again. It
// returns at the latest at the end of the ConfirmTimeout that has begun with the first try.
func (d *Declarations) Resend(
	m Message, to string, unroutable error, began time.Time, declare func(*amqp091.Channel) error,
) error {
	var cancel context.CancelFunc
	m.Context, cancel = context.WithDeadline(m.Context, began.Add(d.connection.config.ConfirmTimeout))
	defer cancel()
	if err := d.again(&m, to, unroutable, declare); err != nil {
		return err
	}
	if m.Suspect == nil {
		m.Suspect = &atomic.Bool{}
	}
	m.Suspect.Store(m.Suspect.Load() || NoExchange(unroutable))
	return d.connection.SendOne(m)
}

// again returns nil when the message should be sent again, and else the error of the message.
func (d *Declarations) again(m *Message, to string, unroutable error, declare func(*amqp091.Channel) error) error {
	on, err := d.connection.link.Now()
	if err == nil {
		err = d.do(m.Context, on, to, time.Now(), declare)
	}
	if err == nil {
		return nil
	}
	failed := m.Failure(publish.ErrUnroutable, nil)
	var why *failure.Error
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

// do calls declare, or waits for the call that is under way, for a limited time. The function may never return.
func (d *Declarations) do(
	ctx context.Context, on *wire.Connection, to string, lostAt time.Time, declare func(*amqp091.Channel) error,
) error {
	ctx, cancel := context.WithTimeoutCause(ctx, declareTimeout,
		timeoutError(fmt.Sprintf("%s did not return in time, within %s", d.name, declareTimeout)))
	defer cancel()
	return d.once.Do(ctx, on.Number(), to, lostAt, func() error {
		if before, found := d.resting.Load(to); found {
			if r := before.(*rest); time.Now().Before(r.ends) {
				return r.err
			}
			d.resting.Delete(to)
		}
		channel, err := on.Client.Channel()
		if err != nil {
			return err
		}
		defer func() { _ = channel.Close() }()
		err = panics.Error(d.name, func() error { return declare(channel) })
		var exception *amqp091.Error
		if errors.As(err, &exception) && exception.Server && exception.Code >= amqp091.FrameError {
			d.resting.Store(to, &rest{time.Now().Add(restTime), err})
		}
		return err
	})
}
