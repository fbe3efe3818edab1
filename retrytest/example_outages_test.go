package retrytest_test

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/backoff"

	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
)

// The tests of this file show the breaker and the rules of docs/outages.md.

var errRateLimit = errors.New("the provider limits the rate")

// check returns an error for an answer of the provider. That of status 429 requests the delay of the header Retry-After.
func check(answer *http.Response) error {
	if answer.StatusCode != http.StatusTooManyRequests {
		return nil
	}
	seconds, err := strconv.Atoi(answer.Header.Get("Retry-After"))
	if err != nil {
		return errRateLimit // the header may also have a date, or may be missing
	}
	return backoff.RetryAfter(errRateLimit, time.Duration(seconds)*time.Second)
}

var errMaintenance = errors.New("the provider is being maintained")

// outagePolicy decides by the kind of failure. Other failures are retried by README's schedule.
var outagePolicy = retry.Policy{Schedule: backoff.Exponential(time.Second, 5, 4), Rules: []retry.Rule{
	// Wait as long as the provider requests, or a minute. It is no failure of the message.
	{Name: "rate limit", If: retry.Is(errRateLimit), Then: retry.Snooze(time.Minute)},
	// No retry makes an invalid message valid.
	{Name: "invalid", If: retry.As[*json.SyntaxError](), Then: retry.DeadLetter("invalid")},
	// All messages would fail for an hour: take none, and try one after 10 minutes.
	{Name: "maintenance", If: retry.Is(errMaintenance), Then: retry.Pause(10 * time.Minute)},
	// More patience than for other failures: 1s, 2s, 4s ... 512s, together 17 minutes.
	{Name: "network", If: retry.As[net.Error](), Then: retry.RetryWith(backoff.Exponential(time.Second, 2, 10))},
}}

// sendWithRules sends an order to a handler with the policy.
func sendWithRules(t *testing.T, handler message.NoPublishHandlerFunc) *retrytest.Story {
	app := retrytest.NewWithConfig(t, retrytest.Config{Policy: outagePolicy})
	app.AddConsumerHandler(app.Router, "billing", "orders", handler)
	return app.Send("orders", message.NewMessage("order-1", []byte(`{"cents": 1999`)))
}

// sendEverySecond sends as many orders, one each second, and returns when all are done.
func sendEverySecond(t *testing.T, n int, handler message.NoPublishHandlerFunc, policy retry.Policy) []*retrytest.Story {
	app := retrytest.NewWithConfig(t, retrytest.Config{Policy: policy})
	app.AddConsumerHandler(app.Router, "billing", "orders", handler)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := range n - 2 {
			time.Sleep(time.Second)
			assert.NoError(t, app.Publisher().Publish("orders", message.NewMessage("order-"+strconv.Itoa(i+2), nil)))
		}
	}()
	app.Send("orders", message.NewMessage("order-1", nil))
	<-sent
	app.Send("orders", message.NewMessage("order-"+strconv.Itoa(n), nil))
	return app.Stories("orders")
}

func TestOutageRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		story := sendWithRules(t, func(*message.Message) error {
			answer := &http.Response{StatusCode: http.StatusOK}
			if time.Since(began) < 29*time.Second {
				answer = &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"30"}}}
			}
			return check(answer)
		})
		story.Waited(30 * time.Second).Processed()
		assert.Zero(t, story.Attempts()[1].Record.Failures)
	})
}

func TestOutageInvalidMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sendWithRules(t, func(order *message.Message) error {
			return json.Unmarshal(order.Payload, new(map[string]any))
		}).NeverRetried().DeadLettered("invalid")
	})
}

// database is down for ten minutes.
type database struct {
	began time.Time
	calls int // while it is down
}

func (d *database) charge(*message.Message) error {
	if time.Since(d.began) < 10*time.Minute {
		d.calls++
		return &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	}
	return nil
}

// Few messages: no breaker sees that the database is down. The schedule of the rule is long enough.
func TestOutageDatabaseIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &database{began: time.Now()}
		story := sendWithRules(t, db.charge).Processed()
		assert.Equal(t, 10, story.Attempts()[len(story.Attempts())-1].Record.Failures)
	})
}

// Many messages: the breaker pauses the handler, and most messages do not fail at all. Without it each would fail ten times.
func TestOutageDatabaseIsDownWithBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const call = time.Second
		db := &database{began: time.Now()}
		var mu sync.Mutex
		var up time.Time // when the first call has succeeded
		failed, soon := 0, 0
		policy := outagePolicy
		policy.Breaker = &retry.Breaker{}
		for _, story := range sendEverySecond(t, 1000, func(msg *message.Message) error {
			time.Sleep(call)
			mu.Lock()
			defer mu.Unlock()
			err := db.charge(msg)
			if err == nil && up.IsZero() {
				up = time.Now()
			}
			if err == nil && time.Since(up) <= 2*call {
				soon++
			}
			return err
		}, policy) {
			if story.Processed(); len(story.Attempts()) > 1 {
				failed++
			}
		}
		assert.Less(t, db.calls, 60, "20 before the pause, and a probe every 22s to 30s")
		assert.Less(t, failed, 60)
		assert.LessOrEqual(t, up.Sub(db.began), 10*time.Minute+30*time.Second+call, "the last pause")
		assert.Greater(t, soon, 600-60, "its success ends the pause for the backlog")
	})
}

func TestOutageMaintenance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, calls := time.Now(), 0
		stories := sendEverySecond(t, 1000, func(*message.Message) error {
			if time.Since(began) < time.Hour {
				calls++
				return errMaintenance
			}
			return nil
		}, outagePolicy)
		for _, story := range stories {
			story.Processed()
		}
		assert.LessOrEqual(t, calls, 8, "one every 10 minutes, shortened by up to a quarter")
	})
}

// The probes of a few messages use up no retry, however long the outage is.
func TestOutageOfADayWithFewMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, calls := time.Now(), atomic.Int64{}
		app := retrytest.NewWithConfig(t, retrytest.Config{Policy: retry.Policy{
			Schedule: backoff.Exponential(time.Second, 5, 4), Breaker: &retry.Breaker{},
		}})
		app.AddConsumerHandler(app.Router, "billing", "orders", func(*message.Message) error {
			if time.Since(began) < 24*time.Hour {
				calls.Add(1)
				return errors.New("connection refused")
			}
			return nil
		})
		var orders []*message.Message
		for n := range 40 {
			orders = append(orders, message.NewMessage("order-"+strconv.Itoa(n), nil))
		}
		for _, story := range app.SendAll("orders", orders...) {
			story.Processed()
		}
		assert.Less(t, calls.Load(), int64(24*60*60*4/3/30+200), "a probe every 22s to 30s")
	})
}
