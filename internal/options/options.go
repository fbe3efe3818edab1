// Package options reads what a caller has given to a function whose last parameter is options ...retry.Options.
package options

import (
	"errors"
	"fmt"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/retry"
)

// One returns the options, with the policy of the connection where they have none. More than one is an error, joined
// with the faults of each.
func One(given []retry.Options, connection *retry.Policy) (retry.Options, error) {
	switch len(given) {
	case 0:
		return retry.Options{Policy: connection}, nil
	case 1:
		options := given[0]
		if options.Policy == nil {
			options.Policy = connection
		}
		return options, validate(given[0])
	default:
		all := []error{fmt.Errorf("%d Options were given: give at most one, with all fields", len(given))}
		for i, options := range given {
			if err := validate(options); err != nil {
				all = append(all, faults.Of(fmt.Sprintf("Options %d", i+1), err))
			}
		}
		return retry.Options{}, errors.Join(all...)
	}
}

// Topic refuses a topic without a name. Some backends take it, and an app that has read no setting has it.
func Topic(topic string) error {
	return faults.If(topic == "", "its topic is empty: set the name of the topic that the handler reads")
}

// Relayed returns the faults of a policy on a backend that is not RabbitMQ.
func Relayed(policy retry.Policy) error {
	return errors.Join(policy.Validate(), Ungrouped(policy))
}

// Ungrouped refuses a policy with a TierGroup, which only RabbitMQ has.
func Ungrouped(policy retry.Policy) error {
	if policy.TierGroup == "" {
		return nil
	}
	return fmt.Errorf("TierGroup is %q: only RabbitMQ has it: remove it; here all topics share their tiers, or have none",
		policy.TierGroup)
}
