package door

import (
	"errors"
	"maps"
	"time"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
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

// topology has all tiers.
func (c Config) topology() topology.Config { return c.topologyOf(middleware.Tiers(c.Policy, true)) }

func (c Config) topologyOf(tiers []backoff.Tier) topology.Config {
	return topology.Config{
		Tiers: tiers, TierGroup: c.Policy.TierGroup, Prefix: c.Prefix, QueueType: c.QueueType,
		WorkQueueMode: c.WorkQueueMode, DeadLetters: c.DeadLetters,
		TierArguments: maps.Clone(c.TierArguments), DeadLetterArguments: maps.Clone(c.DeadLetterArguments),
	}
}

// Validate reports all faults of the configuration, joined. It does not connect.
func (c Config) Validate() error {
	var all []error
	tiers := []backoff.Tier{backoff.Tier(time.Second)} // a fault of the schedule is reported once
	if err := c.Policy.Validate(); err != nil {
		all = append(all, faults.In("Policy", err))
	} else {
		tiers = middleware.Tiers(c.Policy, true)
	}
	if group := c.Policy.TierGroup; group != "" {
		all = append(all, faults.In("Policy", naming.Of(c.Prefix).ValidateGroup(group)))
		c.Policy.TierGroup = ""
	}
	all = append(all, validateNames(c.App), c.topologyOf(tiers).Validate(), validateApp(c.App, c.WorkQueueMode))
	if c.Management != "" {
		all = append(all, faults.Of("Management", management.Validate(c.Management)))
	}
	return errors.Join(all...)
}
