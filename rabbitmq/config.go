package rabbitmq

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

// Config is what Connect and NewBuilder need of a Config of packages config and config/amqp3, which document its fields.
type Config struct {
	App        app.Config
	Schedule   backoff.Schedule
	Rules      []retry.Rule
	Jitter     float64
	ExtraTiers []time.Duration
	TierGroup  string
	Settings
}

// topology has all tiers.
func (c Config) topology() topology.Config {
	tiered := middleware.TieredRetryConfig{Schedule: c.Schedule, Rules: c.Rules, Jitter: c.Jitter, ExtraTiers: c.ExtraTiers, TiersWait: true}
	if c.TierGroup != "" && c.ExtraTiers == nil {
		tiered.ExtraTiers = groupLadder()
	}
	return c.topologyOf(scheduleOf(tiered.Tiers()))
}

func (c Config) topologyOf(tiers backoff.Schedule) topology.Config {
	return topology.Config{
		Schedule: tiers, TierGroup: c.TierGroup, NoInbox: c.NoInbox, Prefix: c.Prefix, QueueType: c.QueueType, WorkQueueMode: c.WorkQueueMode,
		DeadLetters: c.DeadLetters, TierArguments: maps.Clone(c.TierArguments), DeadLetterArguments: maps.Clone(c.DeadLetterArguments),
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
	faults := []error{validateNames(c.App), c.topologyOf(c.Schedule).Validate(), validateApp(c.App, c.WorkQueueMode)}
	tiered := middleware.TieredRetryConfig{Schedule: backoff.Constant(time.Second, 1), Rules: c.Rules, Jitter: c.Jitter, ExtraTiers: c.ExtraTiers}
	if c.TierGroup == middleware.NoTierGroup {
		faults = append(faults, fmt.Errorf("TierGroup is %q, which is for handlers: leave it empty for no group", c.TierGroup))
	}
	if c.Management != "" {
		if err := management.Validate(c.Management); err != nil {
			faults = append(faults, fmt.Errorf("Management: %w", err))
		}
	}
	return errors.Join(append(faults, tiered.ValidateRules())...)
}
