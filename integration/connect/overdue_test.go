package connect_test

import (
	"fmt"
	"net/url"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/testapp"
)

// A management API that refuses or is away changes nothing but Health, and is logged once, when the app starts and
// with what to do.
func TestOverdueTiersWithoutTheirAPI(t *testing.T) {
	t.Parallel()
	for name, reason := range map[string]string{
		"away": "does not answer", "wrong password": `the password of the user "guest" is wrong`, "no tag": "needs the tag",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := testapp.Config(t)
			client := broker.Management(t)
			uri, err := url.Parse(client.Endpoint)
			require.NoError(t, err)
			switch name {
			case "away":
				uri.Host = "127.0.0.1:1"
				fallthrough
			case "wrong password":
				uri.User = url.UserPassword("guest", "canary")
			case "no tag":
				user := broker.User(t, "", "", ".*")
				uri.User = url.UserPassword(user, user)
			}
			b.Management = uri.String()
			s := testapp.Connect(t, b)
			tries := testapp.NewLedger()
			s.AddConsumerHandler(s.Router, "billing", s.Queue("orders"), func(msg *message.Message) error {
				if tries.Add(fmt.Sprint(msg.UUID, testapp.Failures(msg))); testapp.Failures(msg) == 0 {
					return errDown
				}
				return nil
			})
			s.Run()
			s.Publish(s.Queue("orders"), testapp.IDs(10)...)
			tries.Wait(t, 20, soon)
			broker.Eventually(t, soon, func() bool { return s.Health().TiersError != "" }, "Health has the reason")
			assert.Contains(t, s.Health().TiersError, reason)
			assert.NoError(t, s.Health().Ready())
			assert.Empty(t, s.Health().Tiers)
			assert.Equal(t, 1, s.Log.Count("Cannot look for overdue tiers"))
			assert.NotContains(t, fmt.Sprint(s.Health(), s.Log.Lines(""), s.Connection, b), "canary")
		})
	}
}
