package relay_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/unpublished"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

func valid() relay.Config {
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, nil)
	return relay.Config{
		Publisher: pubSub, Policy: retry.Policy{Schedule: backoff.Schedule{time.Second, time.Minute}},
		NewSubscriber: func(relay.SubscriberParams) (message.Subscriber, error) { return pubSub, nil },
	}
}

func TestValidateReportsEveryFault(t *testing.T) {
	require.NoError(t, valid().Validate())
	err := relay.Config{MaxHop: -1, RetiredSchedule: backoff.Schedule{1}}.Validate()
	for _, want := range []string{
		"Publisher is nil", "Schedule: ", "RetiredSchedule: ", "NewSubscriber is nil", "MaxHop is -1ns: it must be 0 (the default, 20s) or at least 100ms",
	} {
		assert.ErrorContains(t, err, want)
	}
	_, err = relay.New(relay.Config{}, nil)
	assert.ErrorContains(t, err, "invalid relay.Config: Publisher is nil")
}

func TestTopicNamesAreChecked(t *testing.T) {
	for want, generate := range map[string]func(relay.TopicParams) (string, error){
		`GenerateTopic returned "x" for both tier 1s and tier 1m; names must be unique`: func(relay.TopicParams) (string, error) { return "x", nil },
		`GenerateTopic returned "x" for both tier 1s and the dead-letter topic of unknown handlers; names must be unique`: func(relay.TopicParams) (string, error) {
			return "x", nil
		},
		"GenerateTopic returned an empty name for the topic of tier 1s: return a": func(relay.TopicParams) (string, error) { return "", nil },
		"GenerateTopic returned an error for the topic of tier 1m: the bank is":   func(relay.TopicParams) (string, error) { return "", errDown },
		"GenerateTopic panicked for the topic of tier 1s: no such prefix":         func(relay.TopicParams) (string, error) { panic("no such prefix") },
	} {
		config := valid()
		config.GenerateTopic = generate
		assert.ErrorContains(t, config.Validate(), want)
	}
}

func TestDefaultTopics(t *testing.T) {
	config := valid()
	config.Prefix = "later"
	tiers, err := relay.New(config, nil)
	require.NoError(t, err)
	dead, err := tiers.Backend().Publish(backend.Copy{
		Message: message.NewMessage("1", nil), Handler: "billing", Topic: "orders",
	})
	require.NoError(t, err)
	assert.Equal(t, "later.dead.billing", dead.Topic)
}

// TestEqualTopicNamesAreRefused: a retry would come to its own tier again, or to another handler.
func TestEqualTopicNamesAreRefused(t *testing.T) {
	for name, generate := range map[string]func(relay.TopicParams) string{
		"and tier 1s; names must be unique": func(p relay.TopicParams) string {
			return map[relay.TopicKind]string{relay.DeadLetterTopic: "dead"}[p.Kind]
		},
		`"return" as the return topic of both handler "billing" and handler "shipping"`: func(p relay.TopicParams) string {
			return []string{"tier", "return", "dead" + p.Handler}[p.Kind]
		},
		`GenerateTopic returned "orders" as the return topic of handler`: func(p relay.TopicParams) string {
			return []string{"tier", "orders", "dead" + p.Handler}[p.Kind]
		},
		`but its own topic is "orders" and its dead-letter topic "same`: func(p relay.TopicParams) string {
			return []string{"tier", "same" + p.Handler, "same" + p.Handler}[p.Kind]
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := valid()
			config.Policy.Schedule = backoff.Schedule{time.Second}
			config.GenerateTopic = func(p relay.TopicParams) (string, error) {
				if topic := generate(p); topic != "" {
					return topic, nil
				}
				return "one", nil
			}
			tiers, err := relay.New(config, nil)
			require.NoError(t, err)
			subscriber, err := config.NewSubscriber(relay.SubscriberParams{})
			require.NoError(t, err)
			router := message.NewDefaultRouter(nil)
			tiers.AddConsumerHandler(router, "billing", "orders", subscriber, ignore)
			tiers.AddConsumerHandler(router, "shipping", "orders", subscriber, ignore)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // ends Run if nothing is refused
			defer cancel()
			require.ErrorContains(t, router.Run(ctx), name)
			require.NoError(t, tiers.Close())
		})
	}
}

func TestHopOfASubscriber(t *testing.T) {
	for _, row := range []struct{ tier, maxHop, want time.Duration }{
		{time.Second, 0, time.Second},
		{20 * time.Second, 0, 20 * time.Second},
		{21 * time.Second, 0, 10500 * time.Millisecond},
		{10 * time.Second, 3 * time.Second, 2500 * time.Millisecond},
		{10 * time.Second, 9 * time.Second, 5 * time.Second},
		{10*time.Second + time.Millisecond, 5 * time.Second, 3334 * time.Millisecond},
		{backoff.MaxDelay, 0, 20 * time.Second},
		{time.Second, math.MaxInt64, time.Second},
	} {
		hops := map[string]time.Duration{}
		config := valid()
		pubSub := config.NewSubscriber
		config.Policy.Schedule, config.MaxHop = backoff.Schedule{row.tier}, row.maxHop
		config.NewSubscriber = func(p relay.SubscriberParams) (message.Subscriber, error) {
			hops[p.Topic] = p.Hop
			return pubSub(p)
		}
		tiers, err := relay.New(config, nil)
		require.NoError(t, err)
		subscriber, err := pubSub(relay.SubscriberParams{})
		require.NoError(t, err)
		router := message.NewDefaultRouter(nil)
		tiers.AddConsumerHandler(router, "billing", "orders", subscriber, ignore)
		go func() { <-router.Running(); assert.NoError(t, router.Close()) }()
		require.NoError(t, router.Run(t.Context()))
		require.NoError(t, tiers.Close())
		assert.Equal(t, map[string]time.Duration{"retry." + backoff.Tier(row.tier).String(): row.want}, hops)
	}
}

// failing is a publisher whose every publish fails.
type failing struct{ err error }

func (f failing) Publish(string, ...*message.Message) error { return f.err }
func (failing) Close() error                                { return nil }

// A Watermill publisher says nothing but that it took too long: the copy may have arrived.
func TestKindsOfPublishErrors(t *testing.T) {
	refused := &unpublished.Error{Kind: unpublished.Refused, Err: errDown}
	for name, row := range map[string]struct {
		err        error
		classified bool
		want       unpublished.Kind
	}{
		"timeout":            {fmt.Errorf("publish: %w", os.ErrDeadlineExceeded), true, unpublished.Unconfirmed},
		"context":            {context.DeadlineExceeded, true, unpublished.Unconfirmed},
		"any other":          {errDown, false, 0},
		"of RabbitMQ":        {&publish.Error{Err: publish.ErrNacked}, true, unpublished.Rejected},
		"of the publisher":   {fmt.Errorf("publish: %w", refused), true, unpublished.Refused},
		"with a timeout too": {errors.Join(refused, os.ErrDeadlineExceeded), true, unpublished.Refused},
	} {
		config := valid()
		config.Publisher = failing{row.err}
		tiers, err := relay.New(config, nil)
		require.NoError(t, err)
		_, err = tiers.Backend().Publish(backend.Copy{
			Message: message.NewMessage("1", nil), Tier: backoff.Tier(time.Second),
		})
		require.ErrorIs(t, err, row.err, name)
		var failed *unpublished.Error
		require.Equal(t, row.classified, errors.As(err, &failed), name)
		if row.classified {
			assert.Equal(t, row.want, failed.Kind, name)
		}
	}
}
