package testapp

import (
	"testing"
	"testing/synctest"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/major/config"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/model"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/retry"
)

// Model returns a model of a broker, and the configuration of an app on it, for Connect. What the library decides needs
// no real one.
func Model(t *testing.T, change ...func(*config.Config)) (*model.Broker, config.Config) {
	t.Helper()
	return ModelOf(t, model.Rules{}, change...)
}

// ModelOf is Model with the rules of a version.
func ModelOf(t *testing.T, rules model.Rules, change ...func(*config.Config)) (*model.Broker, config.Config) {
	t.Helper()
	b := model.New(model.Config{Rules: rules, Latency: time.Millisecond})
	t.Cleanup(b.Stop)
	c := config.Config{AMQP: amqp.NewDurableQueueConfig("amqp://guest:guest@model:5672/"),
		Policy: retry.Policy{Schedule: Delays}, Settings: rabbitmq.Settings{Prefix: "retry"}}
	for _, f := range change {
		f(&c)
	}
	c.AMQP.Connection.AmqpConfig = &amqp091.Config{Dial: b.Dial, Heartbeat: time.Hour}
	return b, c
}

// OnModel runs a test with a Model in virtual time.
func OnModel(t *testing.T, test func(t *testing.T, b *model.Broker, c config.Config), change ...func(*config.Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		// A router's Close does not wait for those of its subscribers. After the end no time passes.
		t.Cleanup(func() { time.Sleep(time.Second) })
		b, c := Model(t, change...)
		test(t, b, c)
	})
}
