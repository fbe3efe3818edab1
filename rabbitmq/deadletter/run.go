package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/pauses"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/redrive"
	"github.com/tieredretry/watermill-retry/letters"
)

const (
	// mostInFlight is how many letters are sent and not yet confirmed.
	mostInFlight = 128

	// mostBarren is how often in a row a connection may be lost on which no letter was removed, where that reaches no
	// delivery limit.
	mostBarren = 20

	// mostFruitless is how often in a row a letter that cannot be read is met before a letter was removed. A quorum queue
	// can put it behind others, which can be read.
	mostFruitless = 2

	// lockPatience is how long a call waits, after a reconnect, until the broker has removed the lock of its old
	// connection.
	lockPatience = 2 * time.Minute
	// lockPause is how long a call waits for the lock of a command that has just ended.
	lockPause = time.Second
)

// Redrive implements letters.Store. A letter goes to its work queue itself, through the default exchange; an orphan to
// the exchange <prefix>.return with the routing key that it came with. Letters whose work queue is gone stay, and the
// error names each of these queues and wraps letters.ErrNoTarget. A work queue that refuses a letter, such as a full
// one, ends the redrive. While the broker is away, Redrive waits, and then goes on. The property user-id stays only
// where it is the user of the connection.
func (s *Store) Redrive(ctx context.Context, queue string, options letters.Redrive) (letters.Summary, error) {
	c := &call{store: s, queue: queue, sends: !options.DryRun, Run: redrive.New(options, mostInFlight)}
	if queue == s.Orphans() {
		c.through = s.prefix.ReturnExchange()
	}
	return c.run(ctx)
}

// Discard implements letters.Store.
func (s *Store) Discard(ctx context.Context, queue string, options letters.Discard) (letters.Summary, error) {
	return (&call{store: s, queue: queue, Run: redrive.NewDiscard(options)}).run(ctx)
}

// A call is one redrive or discard. It goes on with another look after a lost connection.
type call struct {
	*redrive.Run
	store *Store
	queue string
	group string // whose tier is drained; empty: no tier is
	// the exchange that messages go to with their own routing key; empty: letters go to their work queue
	through string
	sends   bool    // it is neither a discard nor a dry run
	sender  *sender // nil where it does not send
	barren  int     // how often in a row a connection may be lost on which no letter was removed
	caution caution
}

// run looks at the letters that were in the queue at the start and are still there, again after each lost connection.
func (c *call) run(ctx context.Context) (letters.Summary, error) {
	if err := c.Validate(); err != nil {
		return letters.Summary{}, err
	}
	ctx, end, err := c.store.life.Begin(ctx)
	if err != nil {
		return letters.Summary{}, err
	}
	defer end()
	if c.sends {
		if c.sender, err = c.store.newSender(); err != nil {
			return letters.Summary{}, err
		}
		defer c.sender.close()
		c.sender.run = c.Run
	}
	pause := wire.Backoff{Initial: wire.ReconnectInitial, Max: wire.ReconnectMax}
	c.barren = limit(0).barren() // until the limit is known
	for barren, fruitless := 0, 0; ; {
		before := c.Removed()
		err := c.once(ctx)
		if errors.Is(err, errUnreadable) {
			if fruitless++; c.Removed() > before {
				fruitless = 0
			}
			if fruitless < mostFruitless {
				continue
			}
		}
		careful := errors.Is(err, errCareful)
		if err == nil || !careful && !c.Counted() || !errors.Is(err, errLost) {
			return c.Finish(err, false)
		}
		switch {
		case c.Removed() > before:
			pause.Reset()
			barren = 0
		case !errors.Is(err, errNotConnected): // a letter may close the connection that it is delivered on
			if barren++; barren >= c.barren {
				return c.Finish(fmt.Errorf("%d connections in a row were lost before a letter was removed: %w",
					barren, err), false)
			}
		}
		if !careful {
			c.Wait(err)
		}
		if err = pauses.Sleep(ctx, pause.Next()); err != nil {
			return c.Finish(err, false)
		}
	}
}

func (c *call) once(ctx context.Context) (err error) {
	connection, err := c.store.connect(ctx)
	if err != nil {
		if c.Counted() && ctx.Err() == nil {
			return notConnected(err)
		}
		return err
	}
	defer connection.Close()
	if c.group != "" && c.through == "" {
		if c.through, err = c.store.returnOf(connection, c.group); err != nil {
			return err
		}
	}
	if !c.Options.DryRun {
		unlock, err := c.lock(ctx, connection)
		if err != nil {
			return err
		}
		defer unlock()
	}
	least, most := c.Rest() // the newer letters are behind
	look, err := c.store.look(ctx, connection, c.queue, least, most, c.caution, nil)
	if err != nil {
		return c.caution.after(look, err)
	}
	defer func() { err = errors.Join(err, look.close(ctx)) }()
	c.barren = look.limit.barren()
	if c.sends {
		look.widest = 2 * mostInFlight // what a process that dies can send twice
	}
	c.Begin(look.left)
	if err = c.Pass(ctx, &source{call: c, look: look}); err != nil {
		err = c.caution.after(look, err)
	}
	_, _, isTier := c.store.prefix.TierOf(c.queue)
	switch {
	case errors.Is(err, errLost): // these letters come again, or they do not
		c.Lost(look.widest) // the broker has delivered others in place of those before
	case err == nil:
		if taken := c.Missing(look.missing); taken > 0 && !isTier { // from a tier they go home by themselves
			return fmt.Errorf("%d letters were not looked at: another reader of %q has taken them, for example a list "+
				"of the letters; run this again when it has ended", taken, c.queue)
		}
	}
	return err
}

// errNotConnected is the error of a broker that does not accept a connection.
var errNotConnected = errors.New("the broker is away")

// notConnected makes an errLost of the error of a connection that could not be made, unless the broker refuses the
// user.
func notConnected(err error) error {
	if refusal.IsCode(err, amqp091.AccessRefused) {
		return err
	}
	return fmt.Errorf("%w: %w: %w", errLost, errNotConnected, err)
}

// lock makes this connection the only one that changes the queue, until unlock.
func (c *call) lock(ctx context.Context, connection *wire.Connection) (unlock func(), err error) {
	queue, name, deadline := c.queue, c.queue+".lock", time.Now().Add(lockPause)
	if c.Counted() { // an earlier connection of this call may still have the lock
		deadline = time.Now().Add(lockPatience)
	}
	for {
		channel, err := connection.Channel(func(channel *amqp091.Channel) error {
			if _, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil); err != nil {
				return explain("change", queue, err)
			}
			_, err := channel.QueueDeclare(name, false, false, true, false, amqp091.Table{"x-queue-type": "classic"})
			return err
		})
		switch {
		case err == nil: // the broker removes the lock only some time after the connection is closed
			return func() { _, _ = channel.QueueDelete(name, false, false, false) }, nil
		case errors.Is(err, letters.ErrNoQueue):
			return nil, err
		case refusal.IsCode(err, amqp091.ResourceLocked):
			if time.Now().After(deadline) {
				return nil, fmt.Errorf("%w: %q is locked by the exclusive queue %q of another connection; wait "+
					"until that one has ended", letters.ErrBusy, queue, name)
			}
		case refusal.IsCode(err, amqp091.AccessRefused):
			return nil, fmt.Errorf("cannot lock %q against a second redrive: %w: the user needs the permission to "+
				"configure the queue %q", queue, err, name)
		default:
			return nil, explain("lock", queue, err)
		}
		if err := pauses.Sleep(ctx, wire.ReconnectInitial); err != nil {
			return nil, err
		}
	}
}

// Drain sends the messages that wait on the queue of a tier back to their work queues at once, in place of at the end
// of their delay. They keep their failure record, so their retries go on. It looks only at the messages that are
// there when it begins; those that are due meanwhile come back by themselves, and are Unseen in the Summary. A
// message whose work queue does not exist stays. It uses the Filter, Limit, Rate, DryRun and Progress of the options,
// and refuses the others. See also Prune.
func (s *Store) Drain(ctx context.Context, tier string, options letters.Redrive) (letters.Summary, error) {
	group, _, isTier := s.prefix.TierOf(tier)
	if !isTier {
		return letters.Summary{}, fmt.Errorf("%q is not the queue of a tier: it must be <work queue or "+
			"group>.%s.<delay>, such as orders.%[2]s.10s", tier, string(s.prefix))
	}
	if options.Canary != 0 || options.MaxRedead != 0 || options.To != "" || options.Note != "" || options.Again {
		return letters.Summary{}, errors.New("Redrive.Canary, MaxRedead, To, Note and Again are for letters, and " +
			"messages on a tier are none: leave them out")
	}
	c := &call{store: s, queue: tier, group: group, sends: !options.DryRun, Run: redrive.New(options, mostInFlight)}
	return c.run(ctx)
}

// returnOf returns the exchange through which messages come back from the tiers of a group, or of a work queue. No
// group has the name of a work queue.
func (s *Store) returnOf(connection *wire.Connection, group string) (exchange string, err error) {
	for _, exchange = range []string{s.prefix.GroupReturnExchange(group), s.prefix.ReturnExchange()} {
		_, err = connection.Channel(func(channel *amqp091.Channel) error {
			return channel.ExchangeDeclarePassive(exchange, amqp091.ExchangeDirect, true, false, false, false, nil)
		})
		if !refusal.IsCode(err, amqp091.NotFound) {
			return exchange, err
		}
	}
	return "", fmt.Errorf("the exchange %q does not exist: nothing leads from a tier to its work queue; start the "+
		"app, which declares it: %w", exchange, err)
}
