package redrive

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tieredretry/watermill-retry/internal/pauses"
)

const (
	// firstLooks is how often a canary looks for a consumer, once a second, before its first letter goes to a target. A
	// backend shows none for a moment where a process is busy or a group is rebalanced.
	firstLooks = 10

	// consumerPatience is how long a canary that is watched may be without a consumer: longer than a handler that has
	// paused itself waits between two probes, and than most deploys take.
	consumerPatience = time.Minute
)

// awaitFirst waits for a consumer before the first letter of the canary goes to a target.
func (r *Run) awaitFirst(ctx context.Context, s Source, target string) error {
	if !r.isCanary() || slices.Contains(r.targets, target) {
		return nil
	}
	for looks := 1; ; looks++ {
		fault, _ := s.Unconsumed(ctx, []string{target})
		switch {
		case fault == "":
			r.targets = append(r.targets, target)
			return nil
		case looks == firstLooks:
			return unconsumed(fault, "A canary that no handler calls cannot die. Resume or start it")
		}
		if err := pauses.Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}

func unconsumed(fault, advice string) error {
	return fmt.Errorf("%s: its handler is paused, or its app is down. %s, or redrive without a canary. The letters that "+
		"were not sent stay", fault, advice)
}
