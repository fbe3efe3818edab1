package observe

import (
	"fmt"
	"slices"
	"time"

	"github.com/tieredretry/watermill-retry/retry"
)

// pauseReasons are those of SubscriptionHealth.Paused.
var pauseReasons = []string{"paused", "failing", "holding"}

// connection is a Connection that is measured.
type connection struct {
	retry.Observed
	config  Config
	counts  bool // Health counts deliveries and messages in flight
	totals  totals
	looks   *looks
	flights *flights // nil: Health counts them
	failed  bool     // Health has panicked
}

// gather adds the values of now. A panic of Health is logged, once.
func (c *connection) gather(to figures, now time.Time, look bool) {
	defer func() {
		if recovered := recover(); recovered != nil && !c.failed {
			c.failed = true
			c.Logger.Error("Health panicked: the metrics lack what it returns. This is logged once",
				fmt.Errorf("panic: %v", recovered), nil)
		}
	}()
	if look {
		c.looks.gather(to, now)
	}
	if c.flights != nil {
		c.flights.gather(to)
	}
	if c.Health == nil {
		return
	}
	health := c.Health()
	for _, link := range health.Links {
		to.add(connected, smallest, one(link.Connected), labels{link.Name})
		to.add(blocked, largest, one(link.Blocked), labels{link.Name})
		c.totals.see(reconnects, float64(link.Reconnects), labels{link.Name})
	}
	for i := range health.Subscriptions {
		c.subscription(to, &health.Subscriptions[i])
	}
	c.totals.done()
	for _, tier := range health.Tiers {
		to.add(overdue, sum, float64(tier.Overdue), labels{tier.Queue})
	}
}

// subscription adds the values of one. Those of a handler have the same holding and pauses.
func (c *connection) subscription(to figures, s *retry.SubscriptionHealth) {
	handler, both := labels{s.Name}, labels{s.Topic, s.Name}
	to.add(holding, largest, float64(s.Holding), handler)
	for _, reason := range pauseReasons {
		to.add(paused, largest, one(s.PausedLimit == 0 && slices.Contains(s.Paused, reason)), labels{s.Name, reason})
	}
	to.add(consuming, smallest, one(s.Consuming), both)
	if s.Concurrency > 0 {
		to.add(concurrency, sum, float64(s.Concurrency), handler)
	}
	if !c.counts {
		return
	}
	to.add(inFlight, sum, float64(s.InFlight), handler)
	c.totals.see(deliveries, float64(s.Deliveries), both)
	c.totals.see(redeliveries, float64(s.Redeliveries), both)
	c.totals.see(consumerRestarts, float64(s.Reconnects), both)
}

func one(yes bool) float64 { return either[float64](yes, 1, 0) }

// addWaiting adds what waits.
func addWaiting(to figures, all []retry.Waiting, now time.Time) {
	for _, w := range all {
		tier := ""
		if w.Tier != 0 {
			tier = w.Tier.String()
		}
		to.add(waiting, sum, float64(w.Messages), labels{string(w.Kind), w.Queue, tier})
		if !w.NextDue.IsZero() {
			to.add(waitingDue, smallest, age(now, w.NextDue), labels{w.Queue, tier})
		}
	}
}
