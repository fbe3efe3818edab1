package redrive

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tieredretry/watermill-retry/internal/pauses"
)

// consumerLooks is how often a canary looks for a consumer, once a second, before the run ends. A backend shows none
// for a moment where a process is busy, a group is rebalanced, or a handler goes on after a pause.
const consumerLooks = 10

// awaitFirst waits for a consumer before the first letter of the canary goes to a target.
func (r *Run) awaitFirst(ctx context.Context, s Source, target string) error {
	if !r.isCanary() || slices.Contains(r.targets, target) {
		return nil
	}
	if _, err := await(ctx, s, target, "A canary that no handler calls cannot die. Resume or start it, or redrive "+
		"without a canary"); err != nil {
		return err
	}
	r.targets = append(r.targets, target)
	return nil
}

// awaitAll waits until all targets of the canary have a consumer. It returns for how long one had none.
func (r *Run) awaitAll(ctx context.Context, s Source) (missed time.Duration, err error) {
	for _, target := range r.targets {
		one, err := await(ctx, s, target, "So it is not known whether the canary was handled. Resume or start it, and "+
			"redrive again")
		if err != nil {
			return 0, err
		}
		missed += one
	}
	return missed, nil
}

// await waits until the backend shows a consumer of a target, and returns for how long it showed none.
func await(ctx context.Context, s Source, target, advice string) (missed time.Duration, err error) {
	for looks := 1; ; looks++ {
		name := s.Unconsumed(ctx, target)
		switch {
		case name == "":
			return missed, nil
		case looks == consumerLooks:
			return missed, fmt.Errorf("%s has no consumer: its handler is paused, or its app is down. %s. The letters that "+
				"were not sent stay", name, advice)
		}
		if err := pauses.Sleep(ctx, time.Second); err != nil {
			return missed, err
		}
		missed += time.Second
	}
}
