package topology

import (
	"errors"
	"fmt"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/rabbitmq/internal/naming"
)

// QueueType is the type of tier and dead-letter queues.
type QueueType string

const (
	// Quorum, the default, is replicated and hands expired messages on at least once.
	Quorum QueueType = "quorum"
	// Classic voids the promise that no message is lost: a classic tier hands expired messages on without a confirm, so one
	// is lost when the broker dies at the wrong moment.
	Classic QueueType = "classic"
)

// WorkQueueMode says what becomes of the app's own queues.
type WorkQueueMode string

const (
	// Protect, the default, declares a work queue that does not exist as a quorum queue which dead-letters, and does not drop,
	// what the broker itself gives up on: after 20 deliveries that were not acknowledged, or by the app's own arguments. The
	// builder leaves a queue that exists with other arguments as it is, with one warning.
	Protect WorkQueueMode = "protect"
	// Leave declares the work queue as the app's own configuration says.
	Leave WorkQueueMode = "leave"
)

// Config says how failures of a work queue are retried. Only Schedule is required.
type Config struct {
	// Schedule is the delay before each retry. Every distinct delay is a tier with a queue of its own.
	Schedule backoff.Schedule

	// Prefix names the exchanges <prefix>, <prefix>.return and <prefix>.orphans, the queue <prefix>.orphans and the tier
	// queues <work queue>.<prefix>.<tier>. The default is "retry".
	Prefix string

	// QueueType is the type of tier and dead-letter queues. The default is Quorum.
	QueueType QueueType

	// WorkQueueMode says what to do about the work queue. The default is Protect.
	WorkQueueMode WorkQueueMode
}

func (c Config) withDefaults() Config {
	if c.Prefix == "" {
		c.Prefix = string(naming.Default)
	}
	if c.QueueType == "" {
		c.QueueType = Quorum
	}
	if c.WorkQueueMode == "" {
		c.WorkQueueMode = Protect
	}
	return c
}

// Validate reports all faults of the configuration, joined.
func (c Config) Validate() error {
	c = c.withDefaults()
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	if err := c.Schedule.Validate(); err != nil {
		fault("Schedule: %w", err)
	}
	if err := naming.Prefix(c.Prefix).Validate(); err != nil {
		faults = append(faults, err)
	}
	if c.QueueType != Quorum && c.QueueType != Classic {
		fault("QueueType is %q: it must be %q or %q", c.QueueType, Quorum, Classic)
	}
	if c.WorkQueueMode != Protect && c.WorkQueueMode != Leave {
		fault("WorkQueueMode is %q: it must be %q or %q", c.WorkQueueMode, Protect, Leave)
	}
	return errors.Join(faults...)
}
