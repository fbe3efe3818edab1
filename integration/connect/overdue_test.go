package connect_test

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
)

// A management API that refuses or is away changes nothing but Health, and is logged once.
func TestOverdueTiersWithoutTheirAPI(t *testing.T) {
	t.Parallel()
	for name, address := range map[string]string{"away": "http://shop:canary@127.0.0.1:1", "refuses": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			app, b := names(t)
			b.Management = address
			if name == "refuses" {
				uri, err := url.Parse(broker.Management(t).Endpoint)
				require.NoError(t, err)
				uri.User = url.UserPassword("stranger", "canary")
				b.Management = uri.String()
			}
			s := connect(t, app, b)
			tries := testapp.NewLedger()
			s.handle("billing", "orders", func(msg *message.Message) error {
				if tries.Add(fmt.Sprint(msg.UUID, failures(msg))); failures(msg) == 0 {
					return errDown
				}
				return nil
			})
			s.run()
			s.publish("orders", ids(10)...)
			tries.Wait(t, 20, soon)
			broker.Eventually(t, 2*time.Minute, func() bool { return s.Health().TiersError != nil }, "Health has the reason")
			assert.NoError(t, s.Health().Ready())
			assert.Empty(t, s.Health().Tiers)
			assert.Equal(t, 1, s.log.Count("Cannot look for overdue tiers"))
			assert.NotContains(t, fmt.Sprint(s.Health(), s.log.Lines(""), s.Connection, b), "canary")
		})
	}
}
