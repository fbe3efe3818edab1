package main

import (
	"context"
	"time"

	"github.com/tieredretry/watermill-retry/tools/claims"
)

// tier is how long a message waits that fails.
const tier = time.Second

// measureRate measures how many messages a second fail, wait for one second and come back, with 16 in flight. The time
// is that until the last one is back, with its wait of a second.
func measureRate(ctx context.Context, r *run) error {
	sides, messages := []sideName{ownSide, handSide}, r.Size(20_000, 200)
	rates, err := claims.Alternate(r.Turns(3), len(sides), func(i int) (float64, error) {
		took, err := r.play(ctx, sides[i], messages)
		return float64(messages) / took.Seconds(), err
	})
	if err != nil {
		return err
	}
	for i, side := range sides {
		r.note("%s: %s retries a second, the wait included", side, claims.Spread(rates[i], "%.0f"))
	}
	r.Ratio("backend_rate", r.name, rates[0], rates[1])
	return nil
}
