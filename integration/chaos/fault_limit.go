package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

var limits = []Fault{
	{"tier-full", 0, 15 * time.Second, fillTiers},
	{"dead-letters-listed", 0, 10 * time.Second, listDeadLetters},
}

// underPolicy sets a policy for the queues that match a pattern, and removes it after during.
func (l *Load) underPolicy(pattern string, definition rabbithole.PolicyDefinition, during func() error) error {
	policy := rabbithole.Policy{Pattern: pattern, ApplyTo: "queues", Definition: definition, Priority: 100}
	if _, err := l.admin.PutPolicy("/", l.user, policy); err != nil {
		return err
	}
	err := during()
	_, removal := l.admin.DeletePolicy("/", l.user)
	return errors.Join(err, removal)
}

// fillTiers sets a maximum length on the tiers that is so low that the broker refuses most copies.
func fillTiers(ctx context.Context, l *Load) error {
	full := rabbithole.PolicyDefinition{"max-length": 2, "overflow": "reject-publish"}
	err := l.underPolicy("^"+regexp.QuoteMeta(l.config.Name)+"[.][a-z]+[.]"+regexp.QuoteMeta(l.config.Name+"."), full,
		func() error {
			sleep(ctx, l.long(12*time.Second, 3*time.Second))
			return nil
		})
	for which := range workQueues {
		if err == nil && l.ledger.refused[which].Load() == 0 {
			err = fmt.Errorf("the broker refused no copy of %s, so the fault had no effect", l.config.queue(which))
		}
	}
	return err
}

// listDeadLetters lists the dead letters all the time, while a policy limits how often they may be delivered. The list
// does not know the limit: it has no management API.
func listDeadLetters(ctx context.Context, l *Load) error {
	store, err := deadletter.Open(deadletter.Config{URI: l.config.URL, Prefix: l.config.Name}, nil)
	if err != nil {
		return err
	}
	err = l.underPolicy("^"+regexp.QuoteMeta(l.config.Name)+".*[.]dead$",
		rabbithole.PolicyDefinition{"delivery-limit": 3}, func() error {
			for which := range workQueues {
				if err := listAll(ctx, store, l.config.dead(which),
					l.long(8*time.Second, 3*time.Second)/workQueues); err != nil {
					return err
				}
			}
			return nil
		})
	return errors.Join(err, store.Close())
}

// listAll lists the letters of a queue again and again.
func listAll(ctx context.Context, store *deadletter.Store, queue string, long time.Duration) error {
	looks := 0
	for begun := time.Now(); time.Since(begun) < long || looks < 5; {
		if time.Since(begun) > time.Minute {
			return errors.New("there were no dead letters to list, so the fault had no effect")
		}
		n := 0
		for _, err := range store.Browse(ctx, queue, letters.Filter{}) {
			if err != nil {
				return err
			}
			n++
		}
		if n > 0 {
			looks++
		}
	}
	return nil
}
