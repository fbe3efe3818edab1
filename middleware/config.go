package middleware

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
)

const (
	defaultPublishTimeout = 30 * time.Second
	defaultMaxHold        = 10 * time.Minute

	// shutdownPause is longer than ten of the rounds that watermill-amqp's subscriber takes to notice that its context ended.
	shutdownPause = time.Second

	// shortestRound is how long a message that is parked waits at least, whatever the tiers.
	shortestRound = 250 * time.Millisecond

	// Brokers expire a message up to a millisecond early, and clocks differ.
	leastEarlyTolerance = time.Millisecond
	mostEarlyTolerance  = time.Second
)

// RetryTopicParams is what GenerateRetryTopic may decide by. Fields may be added.
type RetryTopicParams struct {
	Topic    string       // the topic the handler subscribes to
	Handler  string       // the handler's name in the router
	Tier     backoff.Tier // the tier the message is to wait on
	Failures int          // how often the message has failed, this failure included; 0 for a message that is only parked
}

// DeadLetterTopicParams is what GenerateDeadLetterTopic may decide by. Fields may be added.
type DeadLetterTopicParams struct {
	Topic    string // the topic the handler subscribes to
	Handler  string // the handler's name in the router
	Failures int    // how often the message has failed, this failure included
	Reason   string // DeadReasonExhausted and its like
}

// TieredRetryConfig configures NewTieredRetry. config.Builder makes one for RabbitMQ.
type TieredRetryConfig struct {
	// Publisher publishes the copies. Required, and one of its own: the router closes the publisher of a handler while
	// handlers still run. Publish must return nil only when the message is safe, and should obey the deadline of the
	// message's context. Close it after the router has closed.
	Publisher message.Publisher

	// Schedule is the delay before each retry. Required. Its distinct delays are the tiers.
	Schedule backoff.Schedule

	// GenerateRetryTopic names the topic whose messages come back to the failed handler after the tier's delay. Required.
	GenerateRetryTopic func(RetryTopicParams) (string, error)

	// GenerateDeadLetterTopic names the topic of the messages that are given up. Required.
	GenerateDeadLetterTopic func(DeadLetterTopicParams) (string, error)

	// OnRetry, OnPark and OnDeadLetter observe; they cannot change the outcome. They run in the handler's goroutine, after
	// the copy has been published and before the message is acknowledged; a panic in them is logged. On a short tier
	// the message may be back, in another handler, before the hook has run. They must be safe for concurrent use.
	OnRetry      func(RetryEvent)
	OnPark       func(ParkEvent)
	OnDeadLetter func(DeadLetterEvent)

	// PublishTimeout is the deadline of one attempt to publish a copy. The default is 30 seconds. It holds after the
	// message's own context has ended, so that a handler's timeout does not lose the message.
	PublishTimeout time.Duration

	// MaxHold is how long a message is kept, with its handler's goroutine, while its copy cannot be published, give or take
	// one PublishTimeout. After it the
	// message is nacked, with the handler's error and the publisher's. The default is 10 minutes; keep it below the broker's
	// consumer timeout (RabbitMQ: 30 minutes by default).
	MaxHold time.Duration

	// EarlyTolerance is how long before its due time a message is handled without being parked again: brokers round, clocks
	// differ, and a wish of backoff.RetryAfter that is a little longer than the longest tier is not worth another round.
	// The default is half the shortest tier, at least 1 ms and at most 1 s.
	EarlyTolerance time.Duration

	// RedactReason changes the text of an error before it is recorded in the message and logged, to keep secrets out of them.
	// It gets the text, cut to 64 KiB of valid UTF-8, and the error; what it returns is cut to 1 KiB. Where it panics
	// nothing but the error's type is recorded. It must be safe for concurrent use. Optional.
	RedactReason func(reason string, err error) string

	// OmitReason records and logs the error's type only, never its text. An error that is given back to the router, because
	// its message could not be published, is still logged by the router as it is.
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

// Validate reports all faults of the configuration, joined. Durations that are zero are taken as their defaults.
func (c TieredRetryConfig) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	if c.Publisher == nil {
		fault("Publisher is nil: give the middleware a publisher of its own, for RabbitMQ the one of config.Builder.NewPublisher")
	}
	if err := c.Schedule.Validate(); err != nil {
		fault("Schedule: %w", err)
	}
	if c.GenerateRetryTopic == nil {
		fault("GenerateRetryTopic is nil: config.Builder.TieredRetryConfig sets it for RabbitMQ")
	}
	if c.GenerateDeadLetterTopic == nil {
		fault("GenerateDeadLetterTopic is nil: config.Builder.TieredRetryConfig sets it for RabbitMQ")
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
