package hold_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestDeadlineOfTheRouterGivesBackWhatIsHeld: it is a shutdown, as the cancellation of the context of Router.Run.
func TestDeadlineOfTheRouterGivesBackWhatIsHeld(t *testing.T) {
	t.Parallel()
	proxy, uri := broker.Proxy(t)
	expires := make(chan struct{})
	a := start(t, plan{
		schedule: schedule, concurrency: 1, publishing: uri, expires: expires,
		handle: func(*message.Message) error { return errDown },
	})
	proxy.Stop()
	a.send(1)
	testapp.Eventually(t, func() bool { return len(a.Events(retry.Held)) == 1 }, "the message is held")
	close(expires)
	testapp.Eventually(t, func() bool { return len(a.Events(retry.GivenBack)) == 1 }, "it is given back")
	testapp.Eventually(t, a.Router.IsClosed, "Run ends")
	assert.Zero(t, a.Log.Count("has set a deadline"), "no middleware has")
	assert.NotContains(t, testapp.Take(t, a.queue, 1)[0].Headers, recordkey.Failures)
}
