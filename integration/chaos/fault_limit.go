package chaos

import (
	"context"
	"errors"
	"regexp"
	"time"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
)

var limits = []Fault{{"tier-full", 0, 15 * time.Second, fillTiers}}

// fillTiers makes the tiers so short that the broker refuses most failures. The limit is raised before it is removed: where it
// is only removed, RabbitMQ 3.10 goes on refusing what comes on a channel that it has refused before.
func fillTiers(ctx context.Context, l *Load) (err error) {
	defer func() {
		_, fault := l.admin.DeletePolicy("/", l.user)
		err = errors.Join(err, fault)
	}()
	if err := l.limitTiers(2); err != nil {
		return err
	}
	sleep(ctx, l.long(8*time.Second, 3*time.Second))
	if err := l.limitTiers(1_000_000); err != nil {
		return err
	}
	l.ledger.heal()
	sleep(ctx, 7*time.Second) // more than the longest pause of a message that is held
	return nil
}

func (l *Load) limitTiers(length int) error {
	_, err := l.admin.PutPolicy("/", l.user, rabbithole.Policy{
		Pattern:    "^" + regexp.QuoteMeta(l.config.Queue+"."+l.config.Prefix+"."),
		ApplyTo:    "queues",
		Definition: rabbithole.PolicyDefinition{"max-length": length, "overflow": "reject-publish"},
		Priority:   100,
	})
	return err
}
