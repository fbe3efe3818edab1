package config_test

import (
	"crypto/tls"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/internal/configtest"
)

// nowhere is an address at which no broker answers.
const nowhere = "amqp://shop:secret@127.0.0.1:1/"

func TestConnectRefuses(t *testing.T) {
	reconnect := func(initial, longest time.Duration) func(*amqp.Config) {
		return func(c *amqp.Config) {
			c.Connection.Reconnect = &amqp.ReconnectConfig{BackoffInitialInterval: initial, BackoffMaxInterval: longest}
		}
	}
	for want, change := range map[string]func(*amqp.Config){
		"AMQP.Publish.Immediate is true":       func(c *amqp.Config) { c.Publish.Immediate = true },
		"AMQP.Consume.Qos.PrefetchSize is 9":   func(c *amqp.Config) { c.Consume.Qos.PrefetchSize = 9 },
		"AMQP.Consume.Qos.PrefetchCount is -1": func(c *amqp.Config) { c.Consume.Qos.PrefetchCount = -1 },
		"PrefetchCount is 65536":               func(c *amqp.Config) { c.Consume.Qos.PrefetchCount = 65_536 },
		"Consumer.Tag: has 256 bytes":          func(c *amqp.Config) { c.Consume.Consumer = strings.Repeat("t", 256) },
		"Consumer.Arguments":                   func(c *amqp.Config) { c.Consume.Arguments = amqp091.Table{"x": struct{}{}} },
		"AMQP.Connection: TLS: is set, but": func(c *amqp.Config) {
			c.Connection.TLSConfig = &tls.Config{ServerName: "broker"}
		},
		"BackoffMaxInterval: -1s":                reconnect(0, -time.Second),
		"BackoffInitialInterval: 2s, at most Ba": reconnect(2*time.Second, time.Second),
	} {
		_, err := config.Connect(configOf(func(c *config.Config) { change(&c.AMQP) }), nil)
		assert.ErrorContains(t, err, want)
	}
	// A handler with a Group needs no Queue.GenerateName: the configuration is valid, and no broker answers.
	own := configOf(func(c *config.Config) { c.AMQP = amqp.NewDurablePubSubConfig(nowhere, nil) })
	_, err := config.Connect(own, nil)
	require.ErrorContains(t, err, "cannot open the connection for consuming")
	assert.NotContains(t, err.Error(), "secret")
}

func TestEveryFieldIsDecided(t *testing.T) {
	configtest.FieldsAreDecided(t, reflect.TypeFor[amqp.Config]())
}
