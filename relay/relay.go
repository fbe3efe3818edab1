package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/subscriptions"
	"github.com/tieredretry/watermill-retry/retry"
)

var errClosed = fmt.Errorf("close the relay after the router: %w", retry.ErrClosed)

// Relay keeps the messages of the tiers until they are due and forwards them to the handlers that failed. It is safe
// for concurrent use. Use one Relay per process, backend and prefix.
type Relay struct {
	config Config
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
	subscribers map[string]message.Subscriber // by topic; kept until Close
	users       int                           // subscriptions of handlers that have not ended
	pumps       *pumps                        // nil before the first user
	closed      bool
	closing     chan struct{} // closed by Close
}

// New returns a Relay, or an error that reports all faults of the configuration. It does not connect to the backend:
// the tiers are subscribed when the router subscribes the first handler, and if that fails, the router's Run returns
// the error. A nil logger logs nothing.
func New(config Config, logger watermill.LoggerAdapter) (*Relay, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("invalid relay.Config: %w", err)
	}
	config.setDefaults()
	config.Policy = config.Policy.Clone()
	tiers, err := newTierSet(config, tiersOf(config.Policy))
	if err != nil {
		return nil, fmt.Errorf("invalid relay.Config: %w", err)
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	r := &Relay{config: config, logger: logger, lock: make(chan struct{}, 1),
		subscribers: map[string]message.Subscriber{}, closing: make(chan struct{})}
	r.tiers.Store(tiers)
	r.source = &backend.Source{
		Owner: r, Name: fmt.Sprintf("the relay with prefix %q", config.Prefix),
		Subscribe: "add its handler with AddConsumerHandler or AddHandler of the relay or its Connection, or give it " +
			"the Connection's Subscriber",
		MaxWait: config.MaxHop,
	}
	return r, nil
}

// Observe attaches observers, such as those of package observe, to all handlers with a middleware of the relay's
// Backend. What an observer does cannot change the outcome of a message. Its errors are logged. Call it once for each
// observer. A Connection has its own Observe.
func (r *Relay) Observe(observers ...retry.Observer) {
	r.observe(retry.Observed{
		Health: func() retry.Health { return retry.Health{Subscriptions: r.health.Health()} }, Closed: r.closing,
	}, observers)
}

// observe attaches observers with what the relay knows.
func (r *Relay) observe(observed retry.Observed, observers []retry.Observer) {
	observed.System, observed.Waiting, observed.Logger = structName(r.config.Publisher), r.waiting, r.logger
	for _, o := range observers {
		r.observers.Attach(o, observed)
	}
}

// locked locks the relay and returns the function that unlocks it.
func (r *Relay) locked() func() {
	r.lock <- struct{}{}
	return func() { <-r.lock }
}

// use counts one subscription of a handler until its context ends. The first one starts the pumps, the last one stops
// them.
func (r *Relay) use(ctx context.Context) error {
	defer r.locked()()
	if r.closed {
		return errClosed
	}
	if r.users == 0 {
		if err := r.start(); err != nil {
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

// start subscribes all tiers, or none if one fails.
func (r *Relay) start() error {
	if r.pumps != nil {
		r.pumps.wait() // a stopped pump may still be publishing
	}
	var started []*pump
	for _, tier := range r.tiers.Load().all {
		if err := r.subscribe(&started, tier); err != nil {
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
func (r *Relay) subscribe(started *[]*pump, tier tierTopic) error {
	subscriber, err := r.subscriber(tier)
	if err == nil {
		p := &pump{relay: r, tierTopic: tier, subscriber: subscriber}
		if err = p.subscribe(); err == nil {
			*started = append(*started, p)
			return nil
		}
	}
	return fmt.Errorf("cannot subscribe tier %v, topic %q: %w", tier.tier, tier.topic, err)
}

func (r *Relay) subscriber(tier tierTopic) (message.Subscriber, error) {
	if known := r.subscribers[tier.topic]; known != nil {
		return known, nil
	}
	subscriber, err := r.config.NewSubscriber(SubscriberParams{Topic: tier.topic, Tier: tier.tier, Hop: tier.hop})
	if err != nil {
		return nil, err
	}
	if subscriber == nil {
		return nil, errors.New("NewSubscriber returned neither a subscriber nor an error: return a subscriber of the " +
			"tier's topic")
	}
	r.subscribers[tier.topic] = subscriber
	return subscriber, nil
}

// Close stops the tiers, nacks the messages that wait, and closes the subscribers of the tiers, but not the publisher.
// Close the router first: a message that fails after Close waits on its tier until another relay, or a new process,
// subscribes to it. A second Close does nothing.
func (r *Relay) Close() error {
	defer r.locked()()
	if !r.closed {
		close(r.closing)
	}
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
