package retrytest_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/retry"
	"github.com/tieredretry/watermill-retry/retrytest"
)

var errBusy, errGone = errors.New("too many requests"), errors.New("the order was cancelled")

// rules are those of an app.
var rules = []retry.Rule{
	{Name: "busy", If: retry.Is(errBusy), Then: retry.Snooze(time.Minute)},
	{Name: "gone", If: retry.Is(errGone), Then: retry.Discard()},
}

// inTurn makes a handler that returns these errors, one at each call, and then nil.
func inTurn(errs ...error) message.NoPublishHandlerFunc {
	return func(*message.Message) (err error) {
		if len(errs) > 0 {
			err, errs = errs[0], errs[1:]
		}
		return err
	}
}

// adding are the ways in which an app adds a handler with rules.
var adding = map[string]func(app *retrytest.App, h message.NoPublishHandlerFunc, options retry.Options){
	"connection": func(app *retrytest.App, h message.NoPublishHandlerFunc, options retry.Options) {
		app.AddConsumerHandler(app.Router, "billing", "orders", h, options)
	},
	"own router": func(app *retrytest.App, h message.NoPublishHandlerFunc, options retry.Options) {
		router := message.NewDefaultRouter(nil)
		router.AddMiddleware(app.Middleware)
		router.AddConsumerHandler("billing", "orders", newSubscriber(app, options), h)
		app.Run(router)
	},
}

func outcomesOf(story *retrytest.Story) (all []retry.Outcome) {
	for _, attempt := range story.Attempts() {
		all = append(all, attempt.Outcome)
	}
	return all
}

func TestStoryOfARule(t *testing.T) {
	options := retry.Options{Policy: &retry.Policy{Schedule: backoff.Schedule{time.Second, time.Minute}, Rules: rules}}
	for name, add := range adding {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				app := retrytest.New(t, backoff.Schedule{time.Second, time.Minute})
				add(app, inTurn(errBusy, errDown, errBusy), options)
				story := app.Send("orders", order("1")).
					RetriedAt(60*time.Second, 61*time.Second, 121*time.Second).Waited(time.Minute, time.Second, time.Minute).Processed()
				assert.Equal(t, []retry.Outcome{retry.Snoozed, retry.Retried, retry.Snoozed, retry.Recovered}, outcomesOf(story))
				attempts := story.Attempts()
				assert.ErrorContains(t, attempts[0].Err, "too many requests")
				assert.Equal(t, backoff.Tier(time.Minute), attempts[0].Tier)
				assert.Equal(t, []int{0, 1, 0, 0}, []int{attempts[0].Failures, attempts[1].Failures, attempts[2].Failures, attempts[3].Failures})
				assert.Equal(t, 2, attempts[3].Record.Snoozes)
				assert.Contains(t, story.String(), "snoozed, waits 1m on tier 1m")
				assert.Equal(t, []string{"busy", "", "busy", ""}, rulesOf(story))
				assert.Regexp(t, `snoozed, waits 1m on tier 1m +busy +too many requests`, story.String())
			})
			synctest.Test(t, func(t *testing.T) {
				app := retrytest.New(t, backoff.Schedule{time.Second, time.Minute})
				add(app, inTurn(errDown, errGone), options)
				story := app.Send("orders", order("1")).RetriedAt(time.Second)
				assert.Equal(t, []retry.Outcome{retry.Retried, retry.Discarded}, outcomesOf(story))
				assert.Equal(t, errGone, story.Attempts()[1].Err)
				assert.Nil(t, story.DeadLetter())
				story.Discarded()
			})
		})
	}
}

func rulesOf(story *retrytest.Story) (all []string) {
	for _, attempt := range story.Attempts() {
		all = append(all, attempt.Rule)
	}
	return all
}

func TestDelayedMessageIsParkedBeforeItsFirstTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app := retrytest.New(t, backoff.Schedule{time.Second, time.Minute})
		app.AddConsumerHandler(app.Router, "billing", "orders", failing())
		later := order("1")
		delay.Message(later, delay.For(40*time.Second))
		story := app.Send("orders", later).RetriedAt(40 * time.Second).NeverRetried().Processed()
		assert.Equal(t, []retry.Outcome{retry.Parked, retry.Processed}, outcomesOf(story))
	})
}
