package connect_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/retry"
)

// TestAHandlerThatIsAddedAgainUnderItsName is retried as the new one says: Watermill keeps the middlewares of the one
// that has stopped.
func TestAHandlerThatIsAddedAgainUnderItsName(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct{ queue, connection bool }{
		"on its queue": {}, "on another queue": {queue: true}, "by another connection": {connection: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := testapp.Config(t)
			a := testapp.Connect(t, c)
			before, after := testapp.NewLedger(), testapp.NewLedger()
			a.Handle(a.Queue("other"), 1, before.HandleRetries) // the router goes on
			queue := a.Queue("orders")
			first := a.AddConsumerHandler(a.Router, "billing", queue, before.HandleRetries)
			a.Run()
			a.Publish(queue, "1")
			before.Wait(t, 1, soon)
			assert.Panics(t, func() { a.AddConsumerHandler(a.Router, "billing", queue, after.HandleRetries) },
				"its name is taken")

			first.Stop()
			<-first.Stopped()
			if row.queue {
				queue = a.Queue("invoices")
			}
			var on retry.Connection = a
			if row.connection {
				other, err := config.Connect(c, a.Log)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, other.Close()) })
				on = other
			}
			on.AddConsumerHandler(a.Router, "billing", queue, func(msg *message.Message) error {
				if testapp.Failures(msg) < 2 {
					return errDown
				}
				return after.Handle(msg)
			})
			require.NoError(t, a.Router.RunHandlers(t.Context()))
			a.Publish(queue, "2")
			after.Wait(t, 1, soon)
			assert.Equal(t, map[string]int{"2": 1}, after.Counts(), "after both its retries")
			assert.Equal(t, map[string]int{"1": 1}, before.Counts())
			assert.Zero(t, a.Log.Count("The retry middleware does not fit"))
			testapp.Eventually(t, func() bool { return on.Health().Ready() == nil }, "it is ready")
			if !row.connection {
				testapp.Eventually(t, func() bool { return len(a.Events(retry.Retried)) == 3 }, "each failure is one event")
				assert.Len(t, a.Events(retry.Recovered), 2)
			}
		})
	}
}
