package door

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/backend"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
)

func TestPlacesOfCopies(t *testing.T) {
	t.Parallel()
	c := &core{prefix: naming.Default, app: app.Config{QueueName: func(topic string) string { return topic + "_billing" }}}
	tier := backoff.Tier(1500 * time.Millisecond)
	for name, row := range map[string]struct {
		of    backend.Copy
		group string
		want  place
	}{
		"queue of the topic": {backend.Copy{Topic: "orders", Tier: tier}, "", place{
			work: "orders_billing", group: "orders_billing", tier: tier, exchange: "retry", key: "1500ms.orders_billing",
			queue: "orders_billing.retry.1500ms",
		}},
		"queue of the message": {backend.Copy{Topic: "orders", Queue: "orders_mail", Tier: tier}, "", place{
			work: "orders_mail", group: "orders_mail", tier: tier, exchange: "retry", key: "1500ms.orders_mail",
			queue: "orders_mail.retry.1500ms",
		}},
		"tier group": {backend.Copy{Topic: "orders", Tier: tier}, "shop", place{
			work: "orders_billing", group: "shop", tier: tier, exchange: "shop.retry", key: "1500ms.orders_billing",
			queue: "shop.retry.1500ms",
		}},
		"dead letter": {backend.Copy{Topic: "orders"}, "", place{
			work: "orders_billing", group: "orders_billing", exchange: "retry", key: "dead.orders_billing",
			queue: "orders_billing.dead",
		}},
		"dead letter of a tier group": {backend.Copy{Topic: "orders"}, "shop", place{
			work: "orders_billing", group: "shop", exchange: "retry", key: "dead.orders_billing",
			queue: "orders_billing.dead",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, row.want, c.placeOf(row.of, row.group))
		})
	}
}

// What the middleware refuses names the builder's broker and its prefix, without the password.
func TestSourceOfABuilder(t *testing.T) {
	t.Parallel()
	c := &core{prefix: "again", app: app.Config{URI: "amqps://shop:secret@[::1]/a%2Fb"}}
	source := (&Builder{core: c, token: "token"}).source()
	assert.Equal(t, "the builder of amqps://[::1]:5671/a%2Fb (prefix again)", source.Name)
	assert.Contains(t, source.Subscribe, "amqp.NewSubscriber(builder.SubscriberConfig(), logger)")
	require.Equal(t, "token", source.Token)
}
