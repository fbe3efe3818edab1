package door

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
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
		p.queues = connection.NewDeclarations("the declaration of the retry topology")
	}
	return p
}

// handlerBackend is the backend.Backend of handlers with one group of tiers.
type handlerBackend struct {
	copies
	group  string // the tier group of the policy; empty: each work queue has tiers of its own
	source *backend.Source
}

// Use implements backend.Backend. The tiers are declared with the work queue.
func (b handlerBackend) Use(retry.Policy) (backend.Traits, error) {
	return backend.Traits{
		TiersWait: true, DelayArrivals: true, Source: b.source, Observers: b.core.observers,
	}, nil
}

// Publish implements backend.Backend.
func (b handlerBackend) Publish(c backend.Copy) (backend.Destination, error) {
	to := b.core.placeOf(c, b.group)
	began := time.Now()
	err := b.publish(to, c, began)
	reportPublished(b.core.observers, backend.Published{
		Context: c.Message.Context(), Topic: to.key, Copy: true, Messages: 1, Took: time.Since(began),
	}, err)
	return backend.Destination{Topic: to.key, Queue: to.queue}, err
}

// place is where a copy goes: to a tier of a work queue, or to its dead letters.
type place struct {
	work          string       // the work queue
	group         string       // the group of its tiers; the work queue itself where it has tiers of its own
	tier          backoff.Tier // 0: its dead letters
	exchange, key string
	queue         string // on which the copy then is
}

// placeOf composes the key of a copy.
func (c *core) placeOf(of backend.Copy, group string) place {
	// A Connection's subscribers name the queue. Those of a Builder do not, and then the app's configuration has the
	// name of a topic's queue.
	work := of.Queue
	if work == "" {
		work = workQueueOf(c.app, "", of.Topic)
	}
	to := place{work: work, group: cmp.Or(group, work), tier: of.Tier, exchange: c.prefix.RetryExchange()}
	if to.tier == 0 {
		to.key, to.queue = naming.DeadKey(work), naming.DeadQueue(work)
		return to
	}
	to.key, to.queue = naming.RetryKey(work, to.tier), c.prefix.TierQueue(to.group, to.tier)
	if to.group != work {
		to.exchange = c.prefix.GroupExchange(to.group)
	}
	return to
}

// room is what the broker may add to a copy.
func (c *core) room(to place) publisher.Room {
	if to.tier == 0 {
		return headers.RoomOfDeadLetter()
	}
	return headers.RoomOnTier(c.prefix, to.work, to.group, to.key)
}

func (p copies) publish(to place, c backend.Copy, began time.Time) error {
	msg := c.Message
	m := publisher.Message{
		Context: msg.Context(), Exchange: to.exchange, RoutingKey: to.key, UUID: msg.UUID,
		Room: p.core.room(to), Suspect: c.Suspect,
	}
	var err error
	if m.Publishing, err = p.marshaler.Marshal(msg); err != nil {
		return m.Failure(publish.ErrRefused, err)
	}
	if err = headers.Fit(&m, p.connection); err != nil {
		return err
	}
	err = p.connection.SendOne(m)
	if p.queues == nil || !errors.Is(err, publish.ErrUnroutable) {
		return err
	}
	// Copies of all work queues of a group fail at the same moment: the first one declares their tier again for all.
	t, _ := p.core.existing(to.work)
	return p.queues.Resend(m, to.queue, err, began, p.core.redeclare(t))
}

// join returns nil where no message has failed, and the error of a single one as it is.
func join(failures []error) error {
	failures = slices.DeleteFunc(failures, func(err error) bool { return err == nil })
	if len(failures) == 1 {
		return failures[0]
	}
	return errors.Join(failures...)
}
