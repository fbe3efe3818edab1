package middleware

import (
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/binding"
	"github.com/tieredretry/watermill-retry/retry"
)

// Source is where the messages of a subscriber come from, and how their copies come back to it. The subscribers of a builder, of
// a relay and of a Connection carry it outside of the metadata. An app does not make one.
type Source struct {
	Owner     any    // what makes the subscribers, for example a builder. Comparable
	Broker    any    // equal for sources whose copies the same publisher can publish. Comparable
	Name      string // of the owner, for errors
	Subscribe string // how to make a subscriber of this source, for errors

	// CheckPublisher returns an error for a Publisher that does not bring copies to this source's destinations.
	// TieredRetryConfig.Validate calls it. Optional.
	CheckPublisher func(message.Publisher) error

	// DeclaredTiers, GenerateRetryDestination and GenerateDeadLetterDestination are those of the owner's TieredRetryConfig.
	DeclaredTiers                 []backoff.Tier
	GenerateRetryDestination      func(RetryDestinationParams) (retry.Destination, error)
	GenerateDeadLetterDestination func(DeadLetterDestinationParams) (retry.Destination, error)

	// MaxWait is how long a message may stay unacknowledged while its handler is paused. 0: TieredRetryConfig.MaxHold.
	MaxWait time.Duration
}

// refusalInterval is how often the reason is logged while a message of a wrong source is held.
const refusalInterval = 30 * time.Second

// sourceOf returns the source whose destinations bring the copies of a message back, nil for those of the configuration. The
// error says why there is none.
func (t *TieredRetry) sourceOf(msg *message.Message, from *binding.Binding) (*Source, error) {
	own := t.config.Source
	if own == nil {
		return nil, nil
	}
	var source *Source
	if from != nil {
		source, _ = from.Source.(*Source)
	}
	where := func() string {
		o := originOf(msg.Context())
		return fmt.Sprintf("handler %q on topic %q", o.handler, o.topic)
	}
	switch {
	case source == nil:
		return nil, fmt.Errorf("%s: its subscriber is not one of %s, so a copy of its messages would not come back: %s", where(), own.Name, own.Subscribe)
	case source.Owner == own.Owner:
		return nil, nil
	case t.accepted.Load() == source:
		return source, nil
	case source.Broker != own.Broker:
		return nil, fmt.Errorf("%s: its subscriber is one of %s, but its retry middleware is one of %s, which publishes elsewhere: "+
			"add to each handler the middleware of its own subscriber", where(), source.Name, own.Name)
	}
	for _, tiers := range [2][]backoff.Tier{t.policy.tiers, t.policy.lanes} {
		for _, tier := range tiers {
			if !slices.Contains(source.DeclaredTiers, tier) {
				return nil, fmt.Errorf("%s: its subscriber is one of %s, which has not declared the tier %v of its retry middleware (declared: %v): "+
					"add to each handler the middleware of its own subscriber, or give both the same schedule and Jitter",
					where(), source.Name, tier, source.DeclaredTiers)
			}
		}
	}
	t.accepted.Store(source)
	return source, nil
}

// refuse holds a message whose copies would go astray, because a nack would bring it back at once, and a queue with a delivery
// limit would drop it in the end. It returns the error with which the router nacks the message.
func (t *TieredRetry) refuse(in *delivery, why error) error {
	until := time.Now().Add(t.config.MaxHold)
	for {
		t.logger.Error("The retry middleware does not fit the handler's subscriber, holding the message", why, t.fields(in))
		if !in.sleep(min(refusalInterval, time.Until(until))) {
			return t.giveBack(in, &situation{refused: unpublished}, why)
		}
		if time.Until(until) <= 0 {
			return why
		}
	}
}
