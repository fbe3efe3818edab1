package configtest

import (
	"crypto/tls"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
)

// HasAllValues compares the values of an app with those that the tests of each major set.
func HasAllValues(t *testing.T, got app.Config) {
	t.Helper()
	assert.Equal(t, "orders_billing orders to orders",
		got.QueueName("orders")+" "+got.ExchangeName("orders")+" "+got.RoutingKey("orders"))
	assert.IsType(t, app.Plain{}, got.Marshaler)
	got.QueueName, got.ExchangeName, got.RoutingKey, got.DeclareExchange, got.DeclareTopology = nil, nil, nil, nil, nil
	got.Marshaler, got.RedeliveredKey = nil, ""
	assert.Equal(t, app.Config{
		URI: "amqp://shop@localhost/", TLS: &tls.Config{ServerName: "broker"},
		Connection:       &amqp091.Config{Vhost: "shop"},
		ReconnectInitial: time.Second, ReconnectMax: time.Minute,
		Queue: app.Queue{Durable: true, Exclusive: true, AutoDelete: true, Arguments: amqp091.Table{"of": "queue"}},
		Consume: app.Consume{
			Tag: "tag", Exclusive: true, NoLocal: true, NoRequeueOnNack: true, PrefetchCount: 3, PrefetchSize: 4,
			Arguments: amqp091.Table{"of": "consumer"},
		},
		Transactional: true, Immediate: true,
	}, got)
}
