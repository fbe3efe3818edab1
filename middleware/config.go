package middleware

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
)

const (
	defaultPublishTimeout = 30 * time.Second
	defaultMaxHold        = 10 * time.Minute

	// shutdownPause is longer than ten of the rounds that watermill-amqp's subscriber needs to see that its context has ended.
	shutdownPause = time.Second

	// shortestRound is how long a parked message waits at least, even if the tiers are shorter.
	shortestRound = 250 * time.Millisecond

	// Brokers expire a message up to a millisecond early, and clocks differ.
	leastEarlyTolerance = time.Millisecond
	mostEarlyTolerance  = time.Second
)

// Destination is where a copy is published.
type Destination struct {
	// Topic is the topic that Publisher.Publish gets. On RabbitMQ it is the routing key.
	Topic string
	// Queue is the queue or topic on which the copy then is, for logs and events. The default is Topic.
	Queue string
}

// String returns Queue, or Topic where Queue is empty.
func (d Destination) String() string { return cmp.Or(d.Queue, d.Topic) }

// RetryDestinationParams is what GenerateRetryDestination may decide by. Fields may be added.
type RetryDestinationParams struct {
	Topic    string       // the topic the handler subscribes to
	Handler  string       // the handler's name in the router
	Tier     backoff.Tier // the tier the message is to wait on
	Failures int          // how often the message has failed, this failure included; 0 for a message that is only parked
}

// DeadLetterDestinationParams is what GenerateDeadLetterDestination may decide by. Fields may be added.
type DeadLetterDestinationParams struct {
	Topic      string     // the topic the handler subscribes to
	Handler    string     // the handler's name in the router
	Failures   int        // how often the message has failed, this failure included
	DeadReason DeadReason // why it is dead-lettered
}

// TieredRetryConfig configures NewTieredRetry. Builder.TieredRetryConfig of package config makes one for RabbitMQ,
// Relay.TieredRetryConfig of package relay one for other Pub/Subs.
type TieredRetryConfig struct {
	// Publisher publishes the copies. Required. It must not be the publisher of a handler: the router closes that one while
	// handlers still run. Publish must return nil only when the message is safe, and should obey the deadline of the
	// message's context. Close it after the router has closed.
	Publisher message.Publisher

	// Schedule is the delay before each retry. Required. Its distinct delays are the tiers.
	Schedule backoff.Schedule

	// DeclaredTiers are the tiers that exist on the broker or in the relay, which set it. A Schedule with another tier is refused:
	// nothing would bring its messages back. Empty: the tiers are not checked.
	DeclaredTiers []backoff.Tier

	// Source is where the messages must come from. Builder.TieredRetryConfig and Relay.TieredRetryConfig set it. The messages of
	// another source are refused: each is held up to MaxHold, and the error in the log says what to do. The handler is not
	// called and nothing is published. An exception is a source on the same broker and prefix with the same tiers, such as a
	// second builder for another consumer group: its messages come back to its own queue. Nil: the source is not checked.
	Source *Source

	// GenerateRetryDestination returns the destination whose messages come back to the failed handler after the tier's delay.
	// Required.
	GenerateRetryDestination func(RetryDestinationParams) (Destination, error)

	// GenerateDeadLetterDestination returns the destination of the messages that are given up. Required.
	GenerateDeadLetterDestination func(DeadLetterDestinationParams) (Destination, error)

	// OnRetry, OnPark and OnDeadLetter observe. They cannot change the outcome. They run in the handler's goroutine, after the
	// copy has been published and before the message is acknowledged. A panic in them is logged. On a short tier the message
	// may be back, in another handler, before the hook has run. They must be safe for concurrent use. Optional.
	OnRetry      func(RetryEvent)
	OnPark       func(ParkEvent)
	OnDeadLetter func(DeadLetterEvent)

	// PublishTimeout is the deadline of one attempt to publish a copy. The default is 30 seconds. It also holds after the
	// message's own context has ended, so that a handler's timeout does not lose the message.
	PublishTimeout time.Duration

	// MaxHold is how long a message is held, with its handler's goroutine, while its copy cannot be published. It may last one
	// PublishTimeout longer. After it the message is nacked, with the handler's error and the publisher's. The default is 10
	// minutes. It must stay below the broker's consumer timeout (RabbitMQ: 30 minutes by default).
	MaxHold time.Duration

	// EarlyTolerance is how long before its due time a message is handled without being parked again. Brokers round, clocks
	// differ, and a requested delay that is a little longer than the longest tier needs no further round. The default is half
	// the shortest tier, at least 1 ms and at most 1 s.
	EarlyTolerance time.Duration

	// RedactReason changes the text of an error before it is recorded in the message and logged, to keep secrets out of them.
	// It gets the text, cut to 64 KiB of valid UTF-8, and the error. What it returns is cut to 1 KiB. Where it panics, only
	// the error's type is recorded. It must be safe for concurrent use. Optional.
	RedactReason func(reason string, err error) string

	// OmitReason records and logs the error's type only, never its text. The router itself still logs the error of a message
	// that is given back because its copy could not be published.
	OmitReason bool

	// DeepCopy keeps copies of payload and metadata from before the handler, for handlers that write into the payload's bytes
	// or the metadata's map. Handlers that replace them need no copy. It costs two allocations for every message.
	DeepCopy bool
}

func (c *TieredRetryConfig) setDefaults() {
	if c.PublishTimeout == 0 {
		c.PublishTimeout = defaultPublishTimeout
	}
	if c.MaxHold == 0 {
		c.MaxHold = defaultMaxHold
	}
	if c.EarlyTolerance == 0 {
		if tiers := c.Schedule.Tiers(); len(tiers) > 0 {
			c.EarlyTolerance = min(max(time.Duration(tiers[0])/2, leastEarlyTolerance), mostEarlyTolerance)
		}
	}
}

// Validate reports all faults of the configuration, joined. Durations that are zero count as their defaults.
func (c TieredRetryConfig) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	if c.Publisher == nil {
		fault("Publisher is nil: give the middleware a publisher that no handler uses, for RabbitMQ the one of Builder.NewPublisher")
	} else if c.Source != nil && c.Source.CheckPublisher != nil {
		if err := c.Source.CheckPublisher(c.Publisher); err != nil {
			fault("Publisher: %w", err)
		}
	}
	if err := c.Schedule.Validate(); err != nil {
		fault("Schedule: %w", err)
	}
	for _, tier := range c.Schedule.Tiers() {
		if len(c.DeclaredTiers) > 0 && !slices.Contains(c.DeclaredTiers, tier) {
			fault("Schedule has the tier %v, which is not declared (declared: %v): give this schedule to the builder or the relay that made the configuration",
				tier, c.DeclaredTiers)
		}
	}
	if c.GenerateRetryDestination == nil {
		fault("GenerateRetryDestination is nil: Builder.TieredRetryConfig sets it for RabbitMQ, Relay.TieredRetryConfig for other Pub/Subs")
	}
	if c.GenerateDeadLetterDestination == nil {
		fault("GenerateDeadLetterDestination is nil: Builder.TieredRetryConfig sets it for RabbitMQ, Relay.TieredRetryConfig for other Pub/Subs")
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"PublishTimeout", c.PublishTimeout}, {"MaxHold", c.MaxHold}, {"EarlyTolerance", c.EarlyTolerance}} {
		if d.value < 0 {
			fault("%s is %v: it must be 0 (the default) or more", d.field, d.value)
		}
	}
	return errors.Join(faults...)
}
