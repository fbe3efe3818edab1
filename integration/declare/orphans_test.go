package declare_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/integration/testapp"
)

// TestTheFirstOrphanIsLogged: a policy with a dead-letter-routing-key makes an orphan of each retry. An app logs it
// that declares its topology, and one that only verifies it.
func TestTheFirstOrphanIsLogged(t *testing.T) {
	t.Parallel()
	for name, verifyOnly := range map[string]bool{"declares": false, "verifies": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const delay = 100 * time.Millisecond
			a := connect(t, testapp.Schedule(delay), func(c *config.Config) { c.VerifyOnly = verifyOnly })
			queue := a.Queue("orders")
			if verifyOnly {
				a.Declare(queue)
			}
			a.handle(queue, 1, testapp.NewLedger())
			a.Run()
			testapp.PutPolicy(t, a.Name, "^"+a.TierQueue(queue, delay)+"$", `{"dead-letter-routing-key": "nowhere"}`)
			send(t, queue, 0)
			const line = "orphans are in the queue"
			broker.Eventually(t, soon, func() bool { return a.Log.Count(line) > 0 }, "it is logged")
			assert.Contains(t, a.Log.Lines(line)[0], "`wmretry dead redrive "+a.Name+".orphans --prefix "+a.Name+"`")

			sent := func() int { return a.wire.consuming().count("queue.declare passive " + a.Name + ".orphans") }
			before := sent()
			broker.Eventually(t, soon, func() bool { return sent() > before+1 }, "it looks again")
			assert.Equal(t, 1, a.Log.Count(line), "once")
		})
	}
}
