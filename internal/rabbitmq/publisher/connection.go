package publisher

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/users"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/retry"
)

// A Connection is one AMQP connection for publishing, with a session on it, the writer, the quarantine and the slots
// of all messages. It reconnects by itself. All its methods are safe for concurrent use.
type Connection struct {
	config  Config
	link    *wire.Link
	logger  watermill.LoggerAdapter
	current atomic.Pointer[sessionState]

	toWriter     chan *request
	toQuarantine chan *request
	slots        chan struct{} // one token per free slot: MaxInFlight less the messages in flight
	ids          atomic.Uint64
	requests     sync.Pool // *request
	timers       sync.Pool // *time.Timer that is stopped

	calls   users.Count
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	workers sync.WaitGroup // Close waits for them
}

// firstID is 36^7. Ids from there on have 8 digits, so the size of the mark is constant.
const firstID = 36 * 36 * 36 * 36 * 36 * 36 * 36

// Open connects to the broker, as wire.OpenLink does. A nil logger means no logs.
func Open(config Config, logger watermill.LoggerAdapter) (*Connection, error) {
	config.setDefaults()
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	c := newConnection(config, logger.With(watermill.LogFields{"connection": "publishing"}))
	var err error
	if c.link, err = wire.OpenLink(config.Wire, "watermill-retry publisher", c.logger); err != nil {
		return nil, err
	}
	first, err := c.firstSession()
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	c.workers.Go(func() { c.supervise(first) })
	c.workers.Go((&writer{connection: c, queue: c.toWriter}).run)
	c.workers.Go((&quarantine{connection: c, queue: c.toQuarantine}).run)
	return c, nil
}

func newConnection(config Config, logger watermill.LoggerAdapter) *Connection {
	c := &Connection{
		config:       config,
		logger:       logger,
		toWriter:     make(chan *request, config.MaxInFlight),
		toQuarantine: make(chan *request, config.MaxInFlight),
		slots:        make(chan struct{}, config.MaxInFlight),
		requests:     sync.Pool{New: newRequest},
		timers:       sync.Pool{New: newTimer},
	}
	for range config.MaxInFlight {
		c.slots <- struct{}{}
	}
	c.ids.Store(firstID + rand.Uint64N(firstID))
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Close makes Send refuse messages, waits for those in flight until their deadlines, and then closes the connection. It
// may be called several times, and waits each time. It returns nil. It does not wait for Declarations.
func (c *Connection) Close() error {
	<-c.calls.Close()
	c.cancel()
	c.link.Close()
	c.workers.Wait()
	return nil
}

// Health returns the state of the connection. It does not wait for the broker.
func (c *Connection) Health() retry.LinkHealth { return c.link.Health("publishing") }

// Channel opens a channel of the caller's own on the connection, for what does not harm the messages in flight, such as
// declarations. Close it after use. It ends with the connection. Channel returns an error that wraps
// publish.ErrNotConnected, at once, while there is no connection, and publish.ErrBlocked while the broker blocks the
// connection: the broker then reads nothing. The end of ctx ends the wait for the broker's answer.
func (c *Connection) Channel(ctx context.Context) (*amqp091.Channel, error) {
	current, err := c.link.Now()
	if err != nil {
		return nil, err
	}
	if current.Blocked.Load() {
		return nil, publish.ErrBlocked
	}
	type result struct {
		channel *amqp091.Channel
		err     error
	}
	opened := make(chan result)
	go func() {
		channel, err := current.Client.Channel()
		select {
		case opened <- result{channel, err}:
		case <-ctx.Done():
			if err == nil {
				_ = channel.Close()
			}
		}
	}()
	select {
	case r := <-opened:
		if r.err != nil {
			return nil, fmt.Errorf("%w: %w", publish.ErrNotConnected, r.err)
		}
		return r.channel, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
