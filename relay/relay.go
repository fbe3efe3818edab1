package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tieredretry/watermill-retry/internal/options"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/internal/subscriptions"
	"github.com/tieredretry/watermill-retry/retry"
)

var errClosed = fmt.Errorf("close the connection after the router: %w", retry.ErrClosed)

// relay keeps the messages of the tiers until they are due and forwards them to the handlers that failed. It is the
// backend of the retry middleware.
type relay struct {
	config Config
	topics relaytopic.Names
	logger watermill.LoggerAdapter
	source *backend.Source

	tiers    atomic.Pointer[tierSet]
	handlers registry
	health   subscriptions.List

	observers backend.Observers
	running   sync.Map // the pumps that run

	// lock is a channel, because start and Close wait for pumps under it: in testing/synctest a blocked mutex stops the
	// clock.
	lock        chan struct{}
	subscribers map[string]message.Subscriber // the subscribers, by topic; kept until Close
	users       int                           // subscriptions of handlers that have not ended
	pumps       *pumps                        // nil before the first user
	closed      bool

	ending context.Context // ends when Close begins
	end    context.CancelFunc
}

func newRelay(config Config, logger watermill.LoggerAdapter) *relay {
	config.Policy = options.Clone(config.Policy)
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	r := &relay{
		config: config, topics: config.topics(), logger: logger, lock: make(chan struct{}, 1),
		subscribers: map[string]message.Subscriber{},
	}
	r.ending, r.end = context.WithCancel(context.Background())
	r.tiers.Store(newTierSet(config, middleware.Tiers(config.Policy, false)))
	r.source = &backend.Source{
		Owner: r, Name: fmt.Sprintf("the relay with prefix %q", cmp.Or(config.Prefix, "retry")),
		Subscribe: "add its handler with AddConsumerHandler or AddHandler of the Connection, or give it the " +
			"Connection's Subscriber",
	}
	return r
}

// locked locks the relay and returns the function that unlocks it.
func (r *relay) locked() func() {
	r.lock <- struct{}{}
	return func() { <-r.lock }
}

// use counts one subscription of a handler until its context ends. The first one starts the pumps, the last one stops
// them.
func (r *relay) use(ctx context.Context) error {
	defer r.locked()()
	if r.closed {
		return errClosed
	}
	if r.users == 0 {
		if err := r.start(ctx); err != nil {
			return err
		}
	}
	r.users++
	context.AfterFunc(ctx, func() {
		defer r.locked()()
		if r.users--; r.users == 0 {
			r.pumps.stop()
		}
	})
	return nil
}

// start subscribes all tiers, or none if one fails or ctx ends.
func (r *relay) start(ctx context.Context) error {
	if r.pumps != nil {
		r.pumps.wait() // a stopped pump may still be publishing
	}
	var started []*pump
	for _, tier := range r.tiers.Load().all {
		if err := r.subscribe(ctx, &started, tier); err != nil {
			abandon(started)
			return err
		}
	}
	r.pumps = newPumps()
	for _, pump := range started {
		r.pumps.start(pump)
	}
	return nil
}

// subscribe subscribes a tier and adds its pump, which does not run yet.
func (r *relay) subscribe(ctx context.Context, started *[]*pump, tier tierTopic) error {
	subscriber, err := r.subscriber(tier)
	if err == nil {
		p := newPump(r, tier, subscriber)
		if err = p.subscribe(ctx); err == nil {
			*started = append(*started, p)
			return nil
		}
	}
	return fmt.Errorf("cannot subscribe tier %v, topic %q: %w", tier.tier, tier.topic, err)
}

func (r *relay) subscriber(tier tierTopic) (message.Subscriber, error) {
	if known := r.subscribers[tier.topic]; known != nil {
		return known, nil
	}
	subscriber, err := r.config.newSubscriber(SubscriberParams{Tier: tier.tier})
	if err == nil {
		r.subscribers[tier.topic] = subscriber
	}
	return subscriber, err
}

// waiting returns the messages that this process keeps until they are due, for each tier that is subscribed. Messages
// that the backend has not delivered yet, and dead letters, are not shown: no Pub/Sub of Watermill counts them.
func (r *relay) waiting(context.Context) (all []backend.Waiting, err error) {
	r.running.Range(func(p, _ any) bool {
		all = append(all, p.(*pump).shown())
		return true
	})
	slices.SortFunc(all, func(a, b backend.Waiting) int { return cmp.Compare(a.Tier, b.Tier) })
	return all, nil
}

// Close stops the tiers, nacks the messages that wait, and closes the subscribers of the tiers. A message that fails
// after it waits on its tier until a new process subscribes to it.
func (r *relay) Close() error {
	r.end()
	defer r.locked()()
	r.closed = true
	if r.pumps != nil {
		r.pumps.stop()
		r.pumps.wait()
	}
	var faults []error
	for topic, subscriber := range r.subscribers {
		if err := subscriber.Close(); err != nil {
			faults = append(faults, fmt.Errorf("cannot close the subscriber of topic %q: %w", topic, err))
		}
	}
	clear(r.subscribers)
	return errors.Join(faults...)
}
