package relay

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/middleware"
)

// Relay keeps the messages of the tiers until they are due and forwards them to the handlers that failed. It is safe for
// concurrent use. Use one Relay per process, backend and prefix.
type Relay struct {
	config  Config
	tiers   []tierTopic
	byTopic map[string]tierTopic
	byTier  map[backoff.Tier]tierTopic
	logger  watermill.LoggerAdapter

	handlers registry

	// lock is a channel, because start and Close wait for pumps under it: in testing/synctest a blocked mutex stops the clock.
	lock        chan struct{}
	subscribers map[string]message.Subscriber // by topic; kept until Close
	users       int                           // subscriptions of handlers that have not ended
	pumps       *pumps                        // nil before the first user
	closed      bool
}

// New returns a Relay, or an error that reports all faults of the configuration. It does not connect to the backend: the tiers
// are subscribed when the router subscribes the first handler, and if that fails, the router's Run returns the error. A nil
// logger logs nothing.
func New(config Config, logger watermill.LoggerAdapter) (*Relay, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("invalid relay.Config: %w", err)
	}
	config.setDefaults()
	config.Schedule = append(backoff.Schedule(nil), config.Schedule...)
	tiers, err := config.tiers()
	if err != nil {
		return nil, fmt.Errorf("invalid relay.Config: %w", err)
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	r := &Relay{
		config: config, tiers: tiers, byTopic: map[string]tierTopic{}, byTier: map[backoff.Tier]tierTopic{}, logger: logger,
		lock: make(chan struct{}, 1), subscribers: map[string]message.Subscriber{},
	}
	for _, tier := range tiers {
		r.byTopic[tier.topic], r.byTier[tier.tier] = tier, tier
	}
	return r, nil
}

// TieredRetryConfig returns a configuration for middleware.NewTieredRetry with Publisher, Schedule and the topic generators set.
// The other fields are yours to set.
func (r *Relay) TieredRetryConfig() middleware.TieredRetryConfig {
	return middleware.TieredRetryConfig{
		Publisher:     failurePublisher{r},
		Schedule:      append(backoff.Schedule(nil), r.config.Schedule...),
		DeclaredTiers: r.config.Schedule.Tiers(),
		GenerateRetryDestination: func(p middleware.RetryDestinationParams) (middleware.Destination, error) {
			if !r.handlers.has(p.Handler) {
				return middleware.Destination{}, fmt.Errorf("handler %q was not added with the relay's AddHandler or AddConsumerHandler: "+
					"its return topic would have no subscriber", p.Handler)
			}
			topic, err := r.config.topic(TopicParams{Kind: TierTopic, Tier: p.Tier})
			return middleware.Destination{Topic: topic}, err
		},
		GenerateDeadLetterDestination: func(p middleware.DeadLetterDestinationParams) (middleware.Destination, error) {
			topic, err := r.config.topic(TopicParams{Kind: DeadLetterTopic, Handler: p.Handler})
			return middleware.Destination{Topic: topic}, err
		},
	}
}

// locked locks the relay and returns the function that unlocks it.
func (r *Relay) locked() func() {
	r.lock <- struct{}{}
	return func() { <-r.lock }
}

// use counts one subscription of a handler until its context ends. The first one starts the pumps, the last one stops them.
func (r *Relay) use(ctx context.Context) error {
	defer r.locked()()
	if r.closed {
		return errors.New("the relay is closed: close it after the router, and make a new one for a new router")
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
	started := newPumps()
	for _, tier := range r.tiers {
		subscriber, err := r.subscriber(tier)
		if err == nil {
			err = started.add(&pump{relay: r, tierTopic: tier, subscriber: subscriber})
		}
		if err != nil {
			started.abandon()
			return fmt.Errorf("cannot subscribe tier %v, topic %q: %w", tier.tier, tier.topic, err)
		}
	}
	started.start()
	r.pumps = started
	return nil
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
		return nil, errors.New("NewSubscriber returned neither a subscriber nor an error: return a subscriber of the tier's topic")
	}
	r.subscribers[tier.topic] = subscriber
	return subscriber, nil
}

// Close stops the tiers, nacks the messages that wait, and closes the subscribers of the tiers, but not the publisher. Close
// the router first: a message that fails after Close waits on its tier until another relay, or a new process, subscribes to it.
// A second Close does nothing.
func (r *Relay) Close() error {
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
