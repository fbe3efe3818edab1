package middleware

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
)

// Connection is an app's connection to a backend with retries. Connect of packages config, config/amqp3 and relay return one, and
// an App of package retrytest is one: a function that gets the router and a Connection adds the same handlers on every backend, but
// Concurrency above 1, OrderKey and CloseTimeout are refused by package relay, and Group needs a backend with consumer groups. For
// two backends make the HandlerOptions a parameter of that function. A Connection is safe for concurrent use.
type Connection interface {
	// AddConsumerHandler adds a handler with retries to the router, as the router's own AddConsumerHandler does. At most one
	// HandlerOptions can be given. The router's Run returns an error for options that are wrong or that the backend does not
	// have. The retry middleware is the handler's first: add the app's other middlewares to the handler that is returned.
	AddConsumerHandler(router *message.Router, name, topic string, handler message.NoPublishHandlerFunc, options ...HandlerOptions) *message.Handler

	// AddHandler is AddConsumerHandler for a handler that produces messages. They are published with Publisher.
	AddHandler(router *message.Router, name, subscribeTopic, publishTopic string, handler message.HandlerFunc, options ...HandlerOptions) *message.Handler

	// Subscriber returns the subscriber of a handler, for code that adds handlers by itself: the processors of components/cqrs,
	// Requeuer, FanIn. Add Middleware to its handlers. The name is used in logs, and is a part of topic names on the backends of
	// package relay: each handler of an app needs its own. The subscriber's Close ends its subscriptions only.
	Subscriber(name string, options ...HandlerOptions) (message.Subscriber, error)

	// Middleware is the retry middleware for handlers with a Subscriber of this connection, for a handler's or a router's
	// AddMiddleware. It uses the schedule of the message's subscriber. Messages of other subscribers are refused: each is held,
	// and the log has the reason.
	Middleware(message.HandlerFunc) message.HandlerFunc

	// Publisher is the publisher of the app's own messages. Its Close does nothing: Close closes it.
	Publisher() message.Publisher

	// Pause makes a handler take no new messages, until Resume. Its messages stay in the queue, in their order, and count no
	// failure; retries that are due wait there too. Messages in flight go on. The name is that of the handler, or what Subscriber
	// was called with: then all its subscriptions are paused. A handler can be paused before the router runs. A pause is one of this
	// connection: other instances of the app go on, and a new connection has none. Pause does not wait. It returns an error for an
	// unknown name, which lists the names.
	//
	// On RabbitMQ the consumer is cancelled, also across a reconnect, and nothing stays unacknowledged. Other Pub/Subs cannot be
	// told to stop: their next message waits before the handler, is nacked after relay.Config.MaxHop, and waits again when it is
	// redelivered.
	Pause(handler string) error

	// Resume ends a Pause. A handler that is not paused is no error. A pause for another reason stays; see SubscriptionHealth.
	Resume(handler string) error

	// Observe attaches observers, such as those of package observe, to all handlers of the connection, also to those that were added
	// before. What an observer does cannot change the outcome of a message. Its errors are logged. Call it once for each observer.
	Observe(observers ...retry.Observer)

	// Health returns the state of the connection and of all its subscriptions. It does not wait for the backend.
	Health() retry.Health

	// Close ends what is left in the right order: the subscriptions, then the publishers, then the connections. Close the router
	// first, or let its Run return: a message in flight needs its publisher. It may be called several times.
	Close() error
}

// HandlerOptions are the options of one handler, or the defaults of all handlers of a connection. Every field has a default.
type HandlerOptions struct {
	// Group is the consumer group: each group gets every message of a topic, and the handlers of a group share them. That needs a
	// backend with consumer groups: on gochannel each handler gets every message, with or without a group. With package relay it is
	// a parameter of NewHandlerSubscriber, which makes it the consumer group of the Pub/Sub's own subscriber. On RabbitMQ
	// the group's queue is named "<topic>_<group>", as amqp.GenerateQueueNameTopicNameWithSuffix names it, and the app's
	// configuration needs an exchange (amqp.NewDurablePubSubConfig). The default is the connection's group, or none.
	Group string

	// Schedule is the delay before each retry. The default is the connection's.
	Schedule backoff.Schedule

	// Rules decide about failures of one kind, in order: see Rule. The default is the connection's.
	Rules []retry.Rule

	// TierGroup is the name of a group of work queues that share their tiers, or NoTierGroup for tiers of the handler's own where the
	// connection has a group. Only RabbitMQ has it; the other backends have one set of tiers for all topics, and ignore it. The default
	// is the connection's, or none: see BuilderConfig of package config.
	TierGroup string

	// Jitter spreads the retries of messages that have failed together: 0.2 makes a delay of 5s a random one from 5s to 6s. See
	// TieredRetryConfig.Jitter. From 0 to 1. The default is the connection's, or none: a handler turns that off in Middleware, with
	// c.Jitter = 0.
	Jitter float64

	// Breaker pauses the handler while most of its messages fail. The default is the connection's, or none.
	Breaker *retry.Breaker

	// Concurrency is how many messages the handler has in flight. The default is 16 on RabbitMQ, where 1 keeps the order of the
	// queue and 65,535 is the most. Other backends deliver one message at a time for each subscription, and refuse every other value.
	Concurrency int

	// OrderKey returns the key of a message. Messages with the same key are handled one after the other, in the order of the
	// queue, within one process and not across retries. Messages of other keys are handled meanwhile: the prefetch is 16 times
	// the concurrency. Messages without a key ("") have no order. Only RabbitMQ has it. The
	// default is none.
	OrderKey func(*message.Message) string

	// CloseTimeout is how long the handler may go on with its messages after its subscription has ended. Then their contexts
	// end, and a second later they are given up: the broker delivers them again. Set it to the CloseTimeout of the router if that
	// is longer. Only RabbitMQ has it. The default is 30 seconds, which is also the default of the router.
	CloseTimeout time.Duration

	// Middleware changes the configuration of the handler's retry middleware: Observe, MaxAge, MaxHold, RedactReason and so on. It
	// may be called several times. Its changes to what the backend sets are overwritten: Publisher, Source, Observers, DeclaredTiers,
	// TiersWait, DelayArrivals and the generators of destinations. The default is the connection's, which is not called where this one is set.
	Middleware func(*TieredRetryConfig)
}

// NoTierGroup is a TierGroup: the work queue has tiers of its own.
const NoTierGroup = "-"

// Or returns the options with the values of defaults for fields that are not set.
func (o HandlerOptions) Or(defaults HandlerOptions) HandlerOptions {
	if o.Group == "" {
		o.Group = defaults.Group
	}
	if len(o.Schedule) == 0 {
		o.Schedule = defaults.Schedule
	}
	if len(o.Rules) == 0 {
		o.Rules = defaults.Rules
	}
	if o.TierGroup == "" {
		o.TierGroup = defaults.TierGroup
	}
	if o.Jitter == 0 {
		o.Jitter = defaults.Jitter
	}
	if o.Breaker == nil {
		o.Breaker = defaults.Breaker
	}
	if o.Concurrency == 0 {
		o.Concurrency = defaults.Concurrency
	}
	if o.OrderKey == nil {
		o.OrderKey = defaults.OrderKey
	}
	if o.CloseTimeout == 0 {
		o.CloseTimeout = defaults.CloseTimeout
	}
	if o.Middleware == nil {
		o.Middleware = defaults.Middleware
	}
	return o
}

// Configure returns the backend's configuration with Schedule and the changes of Middleware.
func (o HandlerOptions) Configure(backend TieredRetryConfig) TieredRetryConfig {
	config := backend
	if len(o.Schedule) > 0 {
		config.Schedule = o.Schedule
	}
	if len(o.Rules) > 0 {
		config.Rules = o.Rules
	}
	if o.Jitter != 0 {
		config.Jitter = o.Jitter
	}
	if o.Breaker != nil {
		config.Breaker = o.Breaker
	}
	if o.Middleware != nil {
		o.Middleware(&config)
	}
	config.TiersWait, config.DelayArrivals = backend.TiersWait, backend.DelayArrivals
	config.Publisher, config.Source, config.DeclaredTiers = backend.Publisher, backend.Source, config.Tiers()
	config.Observers = backend.Observers
	config.GenerateRetryDestination, config.GenerateDeadLetterDestination = backend.GenerateRetryDestination, backend.GenerateDeadLetterDestination
	return config
}

// maxConcurrency is the largest prefetch: basic.qos of AMQP 0-9-1 sends it in two bytes. Only RabbitMQ has more than 1.
const maxConcurrency = 1<<16 - 1

// Validate reports all faults, joined, that are faults on every backend.
func (o HandlerOptions) Validate() error {
	var faults []error
	if len(o.Schedule) > 0 {
		if err := o.Schedule.Validate(); err != nil {
			faults = append(faults, fmt.Errorf("Schedule: %w", err))
		}
	}
	if err := (&TieredRetryConfig{Rules: o.Rules, Jitter: o.Jitter}).ValidateRules(); err != nil {
		faults = append(faults, err)
	}
	if o.Breaker != nil {
		if err := o.Breaker.Validate(); err != nil {
			faults = append(faults, fmt.Errorf("Breaker: %w", err))
		}
	}
	if o.Concurrency < 0 || o.Concurrency > maxConcurrency {
		faults = append(faults, fmt.Errorf("Concurrency is %d: it must be between 0 (the default) and %d", o.Concurrency, maxConcurrency))
	}
	if o.CloseTimeout < 0 {
		faults = append(faults, fmt.Errorf("CloseTimeout is %v: it must be 0 (the default) or more", o.CloseTimeout))
	}
	return errors.Join(faults...)
}

// OneOf returns the options that a caller has given to a function whose last parameter is options ...HandlerOptions, with
// defaults. More than one is an error, joined with the faults of each.
func OneOf(options []HandlerOptions, defaults HandlerOptions) (HandlerOptions, error) {
	switch len(options) {
	case 0:
		return defaults, nil
	case 1:
		return options[0].Or(defaults), options[0].Validate()
	default:
		faults := []error{fmt.Errorf("%d HandlerOptions were given: give at most one, with all fields", len(options))}
		for i, o := range options {
			if err := o.Validate(); err != nil {
				faults = append(faults, fmt.Errorf("HandlerOptions %d: %w", i+1, err))
			}
		}
		return HandlerOptions{}, errors.Join(faults...)
	}
}
