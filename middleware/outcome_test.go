package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	watermillmw "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	retrymw "github.com/tieredretry/watermill-retry/middleware"
)

func TestSuccessHandsTheMessagesOn(t *testing.T) {
	retry, sent := setup(t)
	out := message.NewMessage("2", []byte("billed"))
	produced, err := retry.Middleware(func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{out}, nil
	})(messageOf(routerContext(t)))
	require.NoError(t, err)
	assert.Equal(t, []*message.Message{out}, produced)
	assert.Empty(t, sent.letters)
}

func TestFailureGoesToItsTier(t *testing.T) {
	ctx := routerContext(t)
	synctest.Test(t, func(t *testing.T) {
		retry, sent := setup(t)
		failedAt := time.Now()
		produced, err := retry.Middleware(func(*message.Message) ([]*message.Message, error) {
			return []*message.Message{message.NewMessage("2", nil)}, fmt.Errorf("billing: %w", errDown)
		})(messageOf(ctx))
		require.NoError(t, err, "a published failure is no error any more")
		assert.Nil(t, produced)

		copied := sent.only(t)
		assert.Equal(t, "1s.orders", copied.topic)
		assert.Equal(t, "uuid-1", copied.msg.UUID)
		assert.Equal(t, "order 1", string(copied.msg.Payload))
		assert.Equal(t, message.Metadata{
			"trace":                  "abc",
			retrymw.FailuresKey:      "1",
			retrymw.FirstFailedAtKey: "2000-01-01T00:00:00.000Z",
			retrymw.LastFailedAtKey:  "2000-01-01T00:00:00.000Z",
			retrymw.DueAtKey:         "2000-01-01T00:00:01.000Z",
			retrymw.ReasonKey:        "billing: the bank is down",
			retrymw.ErrorTypeKey:     "*errors.errorString",
			retrymw.TopicKey:         topic,
			retrymw.HandlerKey:       handler,
			delay.DelayedUntilKey:    "2000-01-01T00:00:01.000Z",
			delay.DelayedForKey:      "1s",
		}, copied.msg.Metadata)
		assert.Equal(t, failedAt.Add(30*time.Second), copied.deadline)
	})
}

func TestFailuresClimbTheTiersAndEndAsADeadLetter(t *testing.T) {
	ctx := routerContext(t)
	synctest.Test(t, func(t *testing.T) {
		retry, sent := setup(t)
		msg := messageOf(ctx)
		for failure, want := range []string{"1s.orders", "5s.orders", "5s.orders", "1m.orders", "dead.orders"} {
			_, err := retry.Middleware(failing(errDown))(msg)
			require.NoError(t, err)
			last := sent.letters[len(sent.letters)-1]
			require.Equal(t, want, last.topic)
			require.Equal(t, fmt.Sprint(failure+1), last.msg.Metadata[retrymw.FailuresKey])
			msg = again(ctx, last)
			time.Sleep(time.Minute) // the tier, in the bubble's time
		}
		dead := sent.letters[len(sent.letters)-1].msg
		assert.Equal(t, message.Metadata{
			"trace":                           "abc",
			retrymw.FailuresKey:               "5",
			retrymw.FirstFailedAtKey:          "2000-01-01T00:00:00.000Z",
			retrymw.LastFailedAtKey:           "2000-01-01T00:04:00.000Z",
			retrymw.ReasonKey:                 "the bank is down",
			retrymw.ErrorTypeKey:              "*errors.errorString",
			retrymw.TopicKey:                  topic,
			retrymw.HandlerKey:                handler,
			retrymw.DeadReasonKey:             string(retrymw.DeadReasonExhausted),
			watermillmw.ReasonForPoisonedKey:  "the bank is down",
			watermillmw.PoisonedTopicKey:      topic,
			watermillmw.PoisonedHandlerKey:    handler,
			watermillmw.PoisonedSubscriberKey: "gochannel.GoChannel",
		}, dead.Metadata)
		assert.Equal(t, "order 1", string(dead.Payload))
	})
}

func TestPermanentFailureIsDeadLetteredAtOnce(t *testing.T) {
	ctx := routerContext(t)
	for name, h := range map[string]message.HandlerFunc{
		"returned": failing(fmt.Errorf("wrapped: %w", backoff.Permanent(errDown))),
		"panicked": func(*message.Message) ([]*message.Message, error) { panic(backoff.Permanent(errDown)) },
	} {
		t.Run(name, func(t *testing.T) {
			retry, sent := setup(t)
			_, err := retry.Middleware(h)(messageOf(ctx))
			require.NoError(t, err)
			dead := sent.only(t)
			assert.Equal(t, "dead.orders", dead.topic)
			assert.Equal(t, string(retrymw.DeadReasonPermanent), dead.msg.Metadata[retrymw.DeadReasonKey])
			assert.Equal(t, "1", dead.msg.Metadata[retrymw.FailuresKey])
		})
	}
}

func TestMessageThatCannotBeUnmarshaledIsDeadLetteredWithoutItsHandler(t *testing.T) {
	retry, sent := setup(t)
	msg := messageOf(routerContext(t))
	msg.Metadata[retrymw.UnmarshalErrorKey] = "no JSON"
	msg.Metadata[retrymw.PropertiesKey] = "raw"
	_, err := retry.Middleware(func(*message.Message) ([]*message.Message, error) {
		t.Error("the handler was called")
		return nil, nil
	})(msg)
	require.NoError(t, err)
	dead := sent.only(t)
	assert.Equal(t, "dead.orders", dead.topic)
	assert.Equal(t, string(retrymw.DeadReasonUnmarshal), dead.msg.Metadata[retrymw.DeadReasonKey])
	assert.Contains(t, dead.msg.Metadata[retrymw.ReasonKey], "no JSON")
	assert.NotContains(t, dead.msg.Metadata, retrymw.UnmarshalErrorKey)
}

func TestRetryAfterWaitsAsLongAsItWishes(t *testing.T) {
	ctx := routerContext(t)
	for _, row := range []struct {
		name  string
		wish  time.Duration
		tiers []string // the tiers it waits on, one after the other
	}{
		{"shorter than the shortest tier", 10 * time.Millisecond, []string{"1s"}},
		{"now", 0, []string{"1s"}},
		{"a tier", 5 * time.Second, []string{"5s"}},
		{"between two tiers", 3 * time.Second, []string{"5s"}},
		{"a little longer than the longest tier", time.Minute + 400*time.Millisecond, []string{"1m"}},
		{"longer than the longest tier", 2*time.Minute + 3*time.Second, []string{"1m", "1m", "5s"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				parks := 0
				retry, sent := setup(t, func(c *retrymw.TieredRetryConfig) {
					c.OnPark = func(retrymw.ParkEvent) { parks++ }
				})
				failedAt := time.Now()
				_, err := retry.Middleware(failing(backoff.RetryAfter(errDown, row.wish)))(messageOf(ctx))
				require.NoError(t, err)

				var calledAt time.Time
				for round := 0; calledAt.IsZero(); round++ {
					last := sent.letters[len(sent.letters)-1]
					require.Equal(t, row.tiers[round]+".orders", last.topic)
					assert.Equal(t, "1", last.msg.Metadata[retrymw.FailuresKey], "waiting is no failure")
					tier, err := backoff.ParseTier(row.tiers[round])
					require.NoError(t, err)
					time.Sleep(time.Duration(tier))
					_, err = retry.Middleware(func(*message.Message) ([]*message.Message, error) {
						calledAt = time.Now()
						return nil, nil
					})(again(ctx, last))
					require.NoError(t, err)
				}
				assert.Len(t, sent.letters, len(row.tiers))
				assert.Equal(t, len(row.tiers)-1, parks)
				assert.GreaterOrEqual(t, calledAt.Sub(failedAt), row.wish-500*time.Millisecond, "the tolerance is half the shortest tier")
			})
		})
	}
}

func TestWishBeyondTheBoundIsTheBound(t *testing.T) {
	ctx := routerContext(t)
	synctest.Test(t, func(t *testing.T) {
		retry, sent := setup(t)
		_, err := retry.Middleware(failing(backoff.RetryAfter(errDown, 200*365*24*time.Hour)))(messageOf(ctx))
		require.NoError(t, err)
		record, ok := retrymw.ReadRecord(sent.only(t).msg.Metadata)
		require.True(t, ok)
		assert.Equal(t, backoff.MaxDelay, time.Until(record.DueAt))
	})
}

func TestEarlyMessageWaitsForTheRest(t *testing.T) {
	ctx := routerContext(t)
	for _, row := range []struct {
		name   string
		early  time.Duration
		parked bool
	}{
		{"a broker's millisecond", time.Millisecond, false},
		{"the tolerance, half the shortest tier", 500 * time.Millisecond, false},
		{"more than the tolerance", 501 * time.Millisecond, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var asked []retrymw.RetryDestinationParams
				retry, sent := setup(t, func(c *retrymw.TieredRetryConfig) {
					generate := c.GenerateRetryDestination
					c.GenerateRetryDestination = func(p retrymw.RetryDestinationParams) (retrymw.Destination, error) {
						asked = append(asked, p)
						return generate(p)
					}
				})
				_, err := retry.Middleware(failing(errDown))(messageOf(ctx))
				require.NoError(t, err)
				back := again(ctx, sent.only(t))
				time.Sleep(time.Second - row.early)

				called := false
				_, err = retry.Middleware(func(*message.Message) ([]*message.Message, error) {
					called = true
					return nil, nil
				})(back)
				require.NoError(t, err)
				assert.Equal(t, !row.parked, called)
				if row.parked {
					parked := sent.letters[1]
					assert.Equal(t, "1s.orders", parked.topic)
					left := maps.Clone(back.Metadata)
					left[delay.DelayedForKey] = row.early.String()
					assert.Equal(t, left, parked.msg.Metadata, "parking changes nothing but what is left, and counts nothing")
					second := backoff.Tier(time.Second)
					assert.Equal(t, []retrymw.RetryDestinationParams{
						{Topic: topic, Handler: handler, Tier: second, Failures: 1}, {Topic: topic, Handler: handler, Tier: second},
					}, asked)
				}
			})
		})
	}
}

func TestPanicIsAFailureWithItsPlace(t *testing.T) {
	var failure error
	retry, sent := setup(t, func(c *retrymw.TieredRetryConfig) {
		c.OnRetry = func(e retrymw.RetryEvent) { failure = e.Err }
	})
	_, err := retry.Middleware(func(*message.Message) ([]*message.Message, error) { panic("boom") })(messageOf(routerContext(t)))
	require.NoError(t, err)
	reason := sent.only(t).msg.Metadata[retrymw.ReasonKey]
	assert.Contains(t, reason, "panic: boom")
	assert.Contains(t, reason, "outcome_test.go:")
	var panicked *retrymw.PanicError
	require.ErrorAs(t, failure, &panicked)
	assert.Contains(t, string(panicked.Stack), "TestPanicIsAFailureWithItsPlace")
}

func TestGoexitSettlesTheMessageItself(t *testing.T) {
	ctx := routerContext(t)
	exiting := func(*message.Message) ([]*message.Message, error) { runtime.Goexit(); return nil, nil }

	t.Run("published", func(t *testing.T) {
		retry, sent := setup(t)
		msg := messageOf(ctx)
		go func() { _, _ = retry.Middleware(exiting)(msg) }()
		<-msg.Acked()
		assert.Equal(t, "1s.orders", sent.only(t).topic)
		assert.Equal(t, retrymw.ErrGoexit.Error(), sent.only(t).msg.Metadata[retrymw.ReasonKey])
	})
	t.Run("cannot be published", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			retry, sent := setup(t)
			sent.fail = func(int) error { return errors.New("no broker") }
			msg := messageOf(ctx)
			go func() { _, _ = retry.Middleware(exiting)(msg) }()
			<-msg.Nacked()
			assert.Empty(t, sent.letters)
		})
	})
}

func TestMessageThatItsHandlerSettledIsNotPublished(t *testing.T) {
	ctx := routerContext(t)
	for name, settle := range map[string]func(*message.Message) bool{
		"acked":  (*message.Message).Ack,
		"nacked": (*message.Message).Nack,
	} {
		t.Run(name, func(t *testing.T) {
			retry, sent := setup(t)
			_, err := retry.Middleware(func(msg *message.Message) ([]*message.Message, error) {
				settle(msg)
				return nil, errDown
			})(messageOf(ctx))
			assert.ErrorIs(t, err, errDown)
			assert.Empty(t, sent.letters)
		})
	}
}

func TestFailureAtShutdownIsGivenBack(t *testing.T) {
	outer := routerContext(t)
	synctest.Test(t, func(t *testing.T) {
		retry, sent := setup(t)
		ctx, cancel := context.WithCancel(outer)
		_, err := retry.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			cancel()
			return nil, msg.Context().Err()
		})(messageOf(ctx))
		require.ErrorIs(t, err, context.Canceled)
		assert.Empty(t, sent.letters, "the broker has it again: publishing it too would make two")
	})
}

// TestShutdownDoesNotSpin: a subscriber that goes on for a while gets its messages back slowly, and no handler is called.
func TestShutdownDoesNotSpin(t *testing.T) {
	outer := routerContext(t)
	synctest.Test(t, func(t *testing.T) {
		retry, sent := setup(t)
		ctx, cancel := context.WithCancel(outer)
		cancel()
		start := time.Now()
		_, err := retry.Middleware(func(*message.Message) ([]*message.Message, error) {
			t.Error("the handler was called")
			return nil, nil
		})(messageOf(ctx))
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, time.Second, time.Since(start))
		assert.Empty(t, sent.letters)
	})
}

func TestShutdownDoesNotInterruptAPublish(t *testing.T) {
	retry, sent := setup(t)
	ctx, cancel := context.WithCancel(routerContext(t))
	sent.fail = func(int) error { cancel(); return nil }
	_, err := retry.Middleware(failing(errDown))(messageOf(ctx))
	require.NoError(t, err)
	assert.NoError(t, sent.only(t).ctxErr)
}

func TestTimeoutOfTheHandlerIsAnOrdinaryFailure(t *testing.T) {
	ctx := routerContext(t)
	synctest.Test(t, func(t *testing.T) {
		retry, sent := setup(t)
		slow := watermillmw.Timeout(time.Second)(func(msg *message.Message) ([]*message.Message, error) {
			<-msg.Context().Done()
			return nil, msg.Context().Err()
		})
		_, err := retry.Middleware(slow)(messageOf(ctx))
		require.NoError(t, err)
		assert.NoError(t, sent.only(t).ctxErr, "the copy is published under a context of its own")
		assert.Equal(t, "context deadline exceeded", sent.only(t).msg.Metadata[retrymw.ReasonKey])
	})
}

type nilTyped struct{}

func (e *nilTyped) Error() string { return *(*string)(nil) }

type panicking struct{ error }

func (panicking) Permanent() bool           { panic("in Permanent") }
func (panicking) RetryAfter() time.Duration { panic("in RetryAfter") }
func (panicking) Unwrap() error             { panic("in Unwrap") }

// TestErrorsThatCannotBeAskedAreOrdinaryFailures: a nil pointer in an error is a common mistake.
func TestErrorsThatCannotBeAskedAreOrdinaryFailures(t *testing.T) {
	ctx := routerContext(t)
	var nilPath *os.PathError
	for name, failure := range map[string]error{
		"nil pointer":         nilPath,
		"nil pointer wrapped": fmt.Errorf("billing: %w", nilPath),
		"methods that panic":  panicking{errDown},
		"joined":              errors.Join(errDown, nilPath, panicking{errDown}),
	} {
		t.Run(name, func(t *testing.T) {
			retry, sent := setup(t)
			_, err := retry.Middleware(failing(failure))(messageOf(ctx))
			require.NoError(t, err)
			assert.Equal(t, "1s.orders", sent.only(t).topic)
			_, err = retry.Middleware(func(*message.Message) ([]*message.Message, error) { panic(failure) })(messageOf(ctx))
			require.NoError(t, err)
		})
	}
}

func TestReasonIsBoundedWhateverTheErrorIs(t *testing.T) {
	ctx := routerContext(t)
	for name, failure := range map[string]error{
		"10 MB":         errors.New(strings.Repeat("é", 5_000_000)),
		"10 MB, odd":    errors.New("x" + strings.Repeat("é", 5_000_000)),
		"invalid UTF-8": errors.New(strings.Repeat("\xff\xfe", 700)),
		"NUL":           errors.New(strings.Repeat("\x00", 700)),
		"nil typed":     (*nilTyped)(nil),
		"empty":         errors.New(""),
		"wrapped":       fmt.Errorf("a: %w", (*nilTyped)(nil)),
	} {
		t.Run(name, func(t *testing.T) {
			retry, sent := setup(t)
			_, err := retry.Middleware(failing(failure))(messageOf(ctx))
			require.NoError(t, err)
			reason := sent.only(t).msg.Metadata[retrymw.ReasonKey]
			assert.LessOrEqual(t, len(reason), 1024)
			assert.True(t, utf8.ValidString(reason))
			assert.NotContains(t, reason, "\x00")
		})
	}
}

func TestWhatIsPublishedIsWhatWasReceived(t *testing.T) {
	ctx := routerContext(t)
	t.Run("a handler that replaces", func(t *testing.T) {
		retry, sent := setup(t)
		_, err := retry.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			msg.UUID, msg.Payload, msg.Metadata = "other", nil, nil
			return nil, errDown
		})(messageOf(ctx))
		require.NoError(t, err)
		assert.Equal(t, "uuid-1", sent.only(t).msg.UUID)
		assert.Equal(t, "order 1", string(sent.only(t).msg.Payload))
		assert.Equal(t, "abc", sent.only(t).msg.Metadata["trace"])
	})
	t.Run("a handler that writes into them, with DeepCopy", func(t *testing.T) {
		retry, sent := setup(t, func(c *retrymw.TieredRetryConfig) { c.DeepCopy = true })
		_, err := retry.Middleware(func(msg *message.Message) ([]*message.Message, error) {
			msg.Payload[0] = 'X'
			msg.Metadata["trace"] = "changed"
			return nil, errDown
		})(messageOf(ctx))
		require.NoError(t, err)
		assert.Equal(t, "order 1", string(sent.only(t).msg.Payload))
		assert.Equal(t, "abc", sent.only(t).msg.Metadata["trace"])
	})
	t.Run("what the Pub/Sub's marshaler needs", func(t *testing.T) {
		retry, sent := setup(t)
		msg := messageOf(ctx)
		msg.Metadata[retrymw.PropertiesKey] = "typed headers"
		_, err := retry.Middleware(failing(errDown))(msg)
		require.NoError(t, err)
		assert.Equal(t, "typed headers", sent.only(t).msg.Metadata[retrymw.PropertiesKey])
	})
	t.Run("the copy is the publisher's own", func(t *testing.T) {
		retry, sent := setup(t)
		msg := messageOf(ctx)
		_, err := retry.Middleware(failing(errDown))(msg)
		require.NoError(t, err)
		assert.NotSame(t, msg, sent.only(t).msg)
		assert.NotContains(t, msg.Metadata, retrymw.FailuresKey, "the inbound message is never marked")
	})
}

func TestHookOrPublisherThatEndsTheGoroutineSettlesTheMessage(t *testing.T) {
	ctx := routerContext(t)
	t.Run("hook", func(t *testing.T) {
		retry, sent := setup(t, func(c *retrymw.TieredRetryConfig) { c.OnRetry = func(retrymw.RetryEvent) { runtime.Goexit() } })
		msg := messageOf(ctx)
		go func() { _, _ = retry.Middleware(failing(errDown))(msg) }()
		<-msg.Acked()
		assert.Equal(t, "1s.orders", sent.only(t).topic)
	})
	t.Run("publisher", func(t *testing.T) {
		retry, sent := setup(t)
		sent.fail = func(int) error { runtime.Goexit(); return nil }
		msg := messageOf(ctx)
		go func() { _, _ = retry.Middleware(failing(errDown))(msg) }()
		<-msg.Nacked()
	})
}

func TestHooksObserveAndCannotChangeTheOutcome(t *testing.T) {
	ctx := routerContext(t)
	synctest.Test(t, func(t *testing.T) {
		var retried []retrymw.RetryEvent
		var dead []retrymw.DeadLetterEvent
		retry, sent := setup(t, func(c *retrymw.TieredRetryConfig) {
			c.OnRetry = func(e retrymw.RetryEvent) { retried = append(retried, e); panic("in a hook") }
			c.OnDeadLetter = func(e retrymw.DeadLetterEvent) { dead = append(dead, e); panic("in a hook") }
		})
		_, err := retry.Middleware(failing(errDown))(messageOf(ctx))
		require.NoError(t, err)
		permanent := backoff.Permanent(errDown)
		time.Sleep(time.Second)
		_, err = retry.Middleware(failing(permanent))(again(ctx, sent.only(t)))
		require.NoError(t, err)
		assert.Equal(t, []retrymw.RetryEvent{{
			Topic: topic, Handler: handler, MessageUUID: "uuid-1", Failures: 1, Delay: time.Second, Tier: backoff.Tier(time.Second),
			DueAt: retried[0].DueAt, Destination: retrymw.Destination{Topic: "1s.orders"}, Err: errDown,
		}}, retried)
		assert.Equal(t, []retrymw.DeadLetterEvent{{
			Topic: topic, Handler: handler, MessageUUID: "uuid-1", Failures: 2, DeadReason: retrymw.DeadReasonPermanent,
			Destination: retrymw.Destination{Topic: "dead.orders"}, Err: permanent,
		}}, dead)
	})
}

// TestLogsNameTheQueue: an operator looks for orders.dead, not for a routing key.
func TestLogsNameTheQueue(t *testing.T) {
	logs := &logRecorder{}
	config := configOf(&recorder{})
	config.GenerateDeadLetterDestination = func(p retrymw.DeadLetterDestinationParams) (retrymw.Destination, error) {
		return retrymw.Destination{Topic: "dead." + p.Topic, Queue: p.Topic + ".dead"}, nil
	}
	retry, err := retrymw.NewTieredRetry(config, logs)
	require.NoError(t, err)
	_, err = retry.Middleware(failing(backoff.Permanent(errDown)))(messageOf(routerContext(t)))
	require.NoError(t, err)
	assert.Contains(t, logs.text.String(), "destination:orders.dead")
	assert.Contains(t, logs.text.String(), "publish_topic:dead.orders")
}
