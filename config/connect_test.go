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

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/internal/configtest"
	"github.com/tieredretry/watermill-retry/middleware"
)

// nowhere is an address at which no broker answers.
const nowhere = "amqp://shop:secret@127.0.0.1:1/"

func TestConnectReportsAllFaults(t *testing.T) {
	broken := configOf(func(c *config.BuilderConfig) {
		c.AMQP.Connection.AmqpURI = nowhere
		c.AMQP.Consume.NoRequeueOnNack = true
		c.Prefix, c.Schedule = "a.*", backoff.Schedule{0}
		c.AMQP.Publish.Immediate = true
	})
	_, err := config.Connect(broken, nil, middleware.HandlerOptions{
		Concurrency: -1, Schedule: backoff.Schedule{-time.Second},
		Middleware: func(c *middleware.TieredRetryConfig) { c.PublishTimeout = -time.Second },
	})
	require.Error(t, err)
	for _, text := range []string{
		"NoRequeueOnNack", `Prefix is "a.*"`, "retry 1: delay 0s", "Publish.Immediate",
		"Concurrency is -1", "retry 1: delay -1s", "PublishTimeout is -1s",
	} {
		assert.ErrorContains(t, err, text)
	}
	_, err = config.Connect(configOf(), nil, middleware.HandlerOptions{}, middleware.HandlerOptions{})
	assert.ErrorContains(t, err, "2 HandlerOptions were given")
	_, err = config.Connect(configOf(), nil, middleware.HandlerOptions{Concurrency: -2}, middleware.HandlerOptions{
		Schedule: backoff.Schedule{0}, Middleware: func(c *middleware.TieredRetryConfig) { c.MaxHold = -time.Second },
	})
	for _, text := range []string{
		"2 HandlerOptions were given", "HandlerOptions 1: Concurrency is -2", "HandlerOptions 2: Schedule: backoff: retry 1", "MaxHold is -1s",
	} {
		assert.ErrorContains(t, err, text)
	}
	_, err = config.Connect(configOf(), nil, middleware.HandlerOptions{Concurrency: 65_536})
	assert.ErrorContains(t, err, "Concurrency is 65536: it must be between 0 (the default) and 65535")
	assert.NotContains(t, err.Error(), "\n", "one fault")
}

// TestConnectWithASchedule: the Schedule of the defaults is the one of a configuration without one, and is validated once.
func TestConnectWithASchedule(t *testing.T) {
	own := configOf(func(c *config.BuilderConfig) { c.AMQP.Connection.AmqpURI, c.Schedule = nowhere, nil })
	_, err := config.Connect(own, nil, middleware.HandlerOptions{Schedule: backoff.Constant(time.Second, 2)})
	require.ErrorContains(t, err, "cannot open the connection for consuming", "the configuration is valid")
	_, err = config.Connect(own, nil, middleware.HandlerOptions{Schedule: backoff.Schedule{-time.Second}})
	require.ErrorContains(t, err, "invalid HandlerOptions: Schedule: backoff: retry 1: delay -1s")
	assert.NotContains(t, err.Error(), "\n", "one fault")
	_, err = config.Connect(own, nil, middleware.HandlerOptions{})
	require.ErrorContains(t, err, "invalid BuilderConfig: Schedule: backoff: no retries")
}

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
		_, err := config.Connect(configOf(func(c *config.BuilderConfig) { change(&c.AMQP) }), nil)
		assert.ErrorContains(t, err, want)
	}
	// A handler with a Group needs no Queue.GenerateName: the configuration is valid, and no broker answers.
	own := configOf(func(c *config.BuilderConfig) { c.AMQP = amqp.NewDurablePubSubConfig(nowhere, nil) })
	_, err := config.Connect(own, nil, middleware.HandlerOptions{Group: "mails"})
	require.ErrorContains(t, err, "cannot open the connection for consuming")
	assert.NotContains(t, err.Error(), "secret")
}

func TestEveryFieldIsDecided(t *testing.T) {
	configtest.FieldsAreDecided(t, reflect.TypeFor[amqp.Config]())
}
