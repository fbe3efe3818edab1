package chaos

import (
	"context"
	"errors"
	"regexp"
	"time"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
)

var limits = []Fault{{"tier-full", 0, 15 * time.Second, separately(fillTiers)}}

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
