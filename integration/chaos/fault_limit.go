package chaos

import (
	"context"
	"errors"
	"regexp"
	"time"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"

	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

var limits = []Fault{
	{"tier-full", 0, 15 * time.Second, separately(fillTiers)},
	{"dead-letters-listed", 0, 10 * time.Second, separately(listDeadLetters)},
}

// fillTiers sets a maximum length on the tiers that is so low that the broker refuses most copies.
func fillTiers(ctx context.Context, l *Load) error {
	_, err := l.admin.PutPolicy("/", l.user, rabbithole.Policy{
		Pattern:    "^" + regexp.QuoteMeta(l.config.Queue+"."+l.config.Prefix+"."),
		ApplyTo:    "queues",
		Definition: rabbithole.PolicyDefinition{"max-length": 2, "overflow": "reject-publish"},
		Priority:   100,
	})
	if err != nil {
		return err
	}
	sleep(ctx, l.long(12*time.Second, 3*time.Second))
	_, err = l.admin.DeletePolicy("/", l.user)
	if err == nil && l.app.refused.count.Load() == 0 {
		err = errors.New("the broker refused no copy, so the fault had no effect")
	}
	return err
}

// listDeadLetters lists the dead letters all the time, while a policy limits how often they may be delivered. The list
// does not know the limit: it has no management API.
func listDeadLetters(ctx context.Context, l *Load) error {
	queue := l.config.Queue + ".dead"
	_, err := l.admin.PutPolicy("/", l.user, rabbithole.Policy{
		Pattern:    "^" + regexp.QuoteMeta(queue) + "$",
		ApplyTo:    "queues",
		Definition: rabbithole.PolicyDefinition{"delivery-limit": 3},
		Priority:   100,
	})
	if err != nil {
		return err
	}
	store, err := deadletter.Open(deadletter.Config{URI: l.config.URL, Prefix: l.config.Prefix}, nil)
	if err != nil {
		return err
	}
	looks := 0
	for begun := time.Now(); time.Since(begun) < l.long(8*time.Second, 3*time.Second) || looks < 5; {
		if time.Since(begun) > time.Minute {
			return errors.New("there were no dead letters to list, so the fault had no effect")
		}
		n := 0
		for _, err := range store.Browse(ctx, queue, letters.Filter{}) {
			if err != nil {
				return errors.Join(err, store.Close())
			}
			n++
		}
		if n > 0 {
			looks++
		}
	}
	_, err = l.admin.DeletePolicy("/", l.user)
	return errors.Join(err, store.Close())
}
