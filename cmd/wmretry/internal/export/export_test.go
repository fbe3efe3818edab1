package export

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/rabbitmq/drift"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// odd is the name of a work queue with what means something in a shell or JSON.
const odd = "o\"d'd ${x} %{y} #ü\\<b>\n"

func shop() Topology {
	wanted := func(queue, group string) drift.Wanted {
		return drift.Wanted{
			Topology: topology.Config{
				Prefix: "retry", Tiers: backoff.Schedule{time.Second, time.Minute}.Tiers(), TierGroup: group, DeadLetters: topology.Retention{MaxLength: 5, MaxAge: time.Hour},
			},
			Queue: topology.Queue{Name: queue, Durable: true, Arguments: amqp091.Table{"x-single-active-consumer": true}},
		}
	}
	return Topology{Vhost: `v"1`, Wanted: []drift.Wanted{wanted("orders", ""), wanted("orders-1", ""), wanted("orders_1", ""), wanted(odd, ""), wanted("mails", "slow")}}
}

func TestPolicies(t *testing.T) {
	var text strings.Builder
	require.NoError(t, Policies(&text, shop()))
	var have struct {
		Policies []struct {
			Name, Pattern string
			Definition    map[string]any
		}
	}
	require.NoError(t, json.Unmarshal([]byte(text.String()), &have))
	require.Len(t, have.Policies, 10)
	for _, p := range have.Policies {
		_, err := regexp.Compile(p.Pattern)
		assert.NoError(t, err)
	}
	assert.Equal(t, map[string]any{"dead-letter-exchange": "retry", "dead-letter-routing-key": "dead.orders"}, have.Policies[0].Definition)
	assert.Equal(t, map[string]any{"max-length": 5.0, "message-ttl": 3600000.0}, have.Policies[1].Definition)
}

func TestRolesMatchTheirObjects(t *testing.T) {
	app := regexp.MustCompile(shop().Roles()[0].Configure)
	all, err := shop().merged()
	require.NoError(t, err)
	for _, q := range all.Queues {
		if !strings.Contains(q.Name, "\n") { // in RabbitMQ's regular expressions . does not match a line feed either
			assert.Regexp(t, app, q.Name)
		}
	}
	for _, e := range all.Exchanges {
		assert.Regexp(t, app, e.Name)
	}
	for _, other := range []string{"invoices", "orders2", "orders.other", "retry2", "amq.default", "xorders.dead"} {
		assert.NotRegexp(t, app, other)
	}
}

func TestFaultsAreReported(t *testing.T) {
	bad := shop()
	bad.Wanted[1].Queue.Name = "orders.dead"
	for _, write := range []func(*strings.Builder) error{
		func(s *strings.Builder) error { return Definitions(s, bad) }, func(s *strings.Builder) error { return Policies(s, bad) },
		func(s *strings.Builder) error { return Permissions(s, bad) },
	} {
		var text strings.Builder
		assert.Error(t, write(&text))
		assert.Empty(t, text.String())
	}
}
