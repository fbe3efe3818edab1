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

// Relay holds the messages of the tiers and hands them back to the handlers they failed in. It is safe for concurrent use.
// Use one per process, backend and prefix.
type Relay struct {
	config Config
	tiers  []tierTopic
	hops   map[string]tierTopic // by topic
	byTier map[backoff.Tier]tierTopic
	logger watermill.LoggerAdapter

	handlers registry

	// lock is a channel, because pumps are waited for under it: in a bubble of testing/synctest a mutex would stop the time.
	lock        chan struct{}
	subscribers map[string]message.Subscriber // by topic; kept until Close
	users       int                           // subscriptions of handlers that have not ended
	pumping     *pumping                      // nil while there are no users
	closed      bool
}

// New checks the configuration, all faults at once, and makes the relay. It connects to nothing yet: the tiers are subscribed
// when the router subscribes the first handler, and an error of that ends the router's Run. A nil logger logs nothing.
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
		config: config, tiers: tiers, hops: map[string]tierTopic{}, byTier: map[backoff.Tier]tierTopic{}, logger: logger,
		lock: make(chan struct{}, 1), subscribers: map[string]message.Subscriber{},
	}
	for _, tier := range tiers {
		r.hops[tier.topic], r.byTier[tier.tier] = tier, tier
	}
	return r, nil
}

// TieredRetryConfig is the configuration of the middleware, for middleware.NewTieredRetry. Set what else you need in it.
func (r *Relay) TieredRetryConfig() middleware.TieredRetryConfig {
	return middleware.TieredRetryConfig{
		Publisher: failurePublisher{r},
		Schedule:  append(backoff.Schedule(nil), r.config.Schedule...),
		GenerateRetryDestination: func(p middleware.RetryDestinationParams) (middleware.Destination, error) {
			if !r.handlers.knows(p.Handler) {
				return middleware.Destination{}, fmt.Errorf("handler %q was not added with the relay's AddHandler or AddConsumerHandler: "+
					"its retry would come back to nobody", p.Handler)
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

// locked returns how to unlock.
func (r *Relay) locked() func() {
	r.lock <- struct{}{}
	return func() { <-r.lock }
}

// use starts the pumps for the first subscription of a handler. They stop when the last one's context has ended.
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
			r.pumping.stop()
		}
	})
	return nil
}

// start subscribes every tier, or none.
func (r *Relay) start() error {
	if r.pumping != nil {
		r.pumping.wait() // the former ones may still hand a message on
	}
	pumping := newPumping()
	for _, tier := range r.tiers {
		subscriber, err := r.subscriber(tier)
		if err == nil {
			err = pumping.add(&pump{relay: r, tierTopic: tier, subscriber: subscriber})
		}
		if err != nil {
			pumping.abandon()
			return fmt.Errorf("cannot subscribe tier %v, topic %s: %w", tier.tier, tier.topic, err)
		}
	}
	pumping.start()
	r.pumping = pumping
	return nil
}

func (r *Relay) subscriber(tier tierTopic) (message.Subscriber, error) {
	if known := r.subscribers[tier.topic]; known != nil {
		return known, nil
	}
	subscriber, err := r.config.NewSubscriber(SubscriberParams{Topic: tier.topic, Tier: tier.tier, Hop: tier.hold})
	if err != nil {
		return nil, err
	}
	if subscriber == nil {
		return nil, errors.New("NewSubscriber returned nil and no error: return a subscriber of the tier's topic")
	}
	r.subscribers[tier.topic] = subscriber
	return subscriber, nil
}

// Close stops the tiers and closes their subscribers, but not the publisher. Close the router first: what a handler fails
// with afterwards waits until another relay takes it up. Messages that were held are given back to the backend.
func (r *Relay) Close() error {
	defer r.locked()()
	r.closed = true
	if r.pumping != nil {
		r.pumping.stop()
		r.pumping.wait()
	}
	var faults []error
	for topic, subscriber := range r.subscribers {
		if err := subscriber.Close(); err != nil {
			faults = append(faults, fmt.Errorf("cannot close the subscriber of %s: %w", topic, err))
		}
	}
	clear(r.subscribers)
	return errors.Join(faults...)
}
