package door

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

// Config is what Connect and NewBuilder need of a Config of packages config and config/amqp3, which document its
// fields.
type Config struct {
	App    app.Config
	Policy retry.Policy
	rabbitmq.Settings
}

// withLadder returns a policy with the default of ExtraTiers.
func withLadder(policy retry.Policy) retry.Policy {
	if policy.TierGroup != "" && policy.ExtraTiers == nil { // all its work queues share them
		policy.ExtraTiers = backoff.Ladder(time.Second, 12*24*time.Hour)
	}
	return policy
}

// topology has all tiers.
func (c Config) topology() topology.Config {
	return c.topologyOf(scheduleOf(middleware.Tiers(withLadder(c.Policy), true)))
}

func (c Config) topologyOf(tiers backoff.Schedule) topology.Config {
	return topology.Config{
		Schedule: tiers, TierGroup: c.Policy.TierGroup, NoInbox: c.NoInbox, Prefix: c.Prefix, QueueType: c.QueueType,
		WorkQueueMode: c.WorkQueueMode, DeadLetters: c.DeadLetters,
		TierArguments: maps.Clone(c.TierArguments), DeadLetterArguments: maps.Clone(c.DeadLetterArguments),
	}
}

// scheduleOf returns a schedule with these tiers.
func scheduleOf(tiers []backoff.Tier) backoff.Schedule {
	var schedule backoff.Schedule
	for _, tier := range tiers {
		schedule = append(schedule, time.Duration(tier))
	}
	return schedule
}

// Validate reports all faults of the configuration, joined. It does not connect.
func (c Config) Validate() error {
	var faults []error
	tiers := c.Policy.Schedule
	if err := c.Policy.Validate(); err != nil {
		faults = append(faults, fmt.Errorf("Policy: %w", err))
		tiers = backoff.Constant(time.Second, 1) // the fault is reported once
	}
	faults = append(faults, validateNames(c.App), c.topologyOf(tiers).Validate(), validateApp(c.App, c.WorkQueueMode))
	if c.Management != "" {
		if err := management.Validate(c.Management); err != nil {
			faults = append(faults, fmt.Errorf("Management: %w", err))
		}
	}
	return errors.Join(faults...)
}
