package config_test

import (
	"crypto/tls"
	"fmt"
	"slices"
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
	"github.com/tieredretry/watermill-retry/internal/middleware"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

const uri = "amqp://guest:guest@localhost:5672/"

func configOf(change ...func(*config.Config)) config.Config {
	c := config.Config{AMQP: amqp.NewDurableQueueConfig(uri), Policy: retry.Policy{Schedule: backoff.Schedule{time.Second, 5 * time.Minute, time.Second}}}
	for _, f := range change {
		f(&c)
	}
	return c
}

func builderOf(t testing.TB, change ...func(*config.Config)) *config.Builder {
	t.Helper()
	b, err := config.NewBuilder(configOf(change...))
	require.NoError(t, err)
	return b
}

func pubSub(uri, group string) amqp.Config {
	return amqp.NewDurablePubSubConfig(uri, amqp.GenerateQueueNameTopicNameWithSuffix(group))
}

// reader reads the dead letters of an app.
func reader(t testing.TB, app amqp.Config) amqp.Config {
	t.Helper()
	c, err := config.DeadLetterSubscriberConfig(app, "")
	require.NoError(t, err)
	return c
}

// stock is watermill-amqp's own marshaler.
func stock(postprocess func(amqp091.Publishing) amqp091.Publishing) amqp.Marshaler {
	return amqp.DefaultMarshaler{PostprocessPublishing: postprocess}
}

func TestAllFaultsAtOnce(t *testing.T) {
	broken := configOf(func(c *config.Config) {
		c.AMQP.Marshaler = nil
		c.AMQP.Consume.NoRequeueOnNack, c.AMQP.Publish.Transactional = true, true
		c.AMQP.Queue.Exclusive, c.AMQP.Queue.AutoDelete, c.AMQP.Queue.Durable = true, true, false
		c.AMQP.Queue.Arguments = amqp091.Table{"x-queue-type": "stream"}
		c.Prefix, c.QueueType, c.WorkQueueMode = "a.*", "lazy", "maybe"
		c.Policy.Schedule = backoff.Schedule{0, 2 * backoff.MaxDelay}
		c.Policy.Jitter = -1
		c.DeadLetters.MaxLength, c.TierArguments, c.DeadLetterArguments = -1, amqp091.Table{"x-expires": 5}, amqp091.Table{"x-overflow": "x"}
	})
	_, err := config.NewBuilder(broken)
	require.Error(t, err)
	_, connected := config.Connect(broken, nil)
	for _, text := range []string{
		"Marshaler", "NoRequeueOnNack", "Transactional", "Exclusive", "AutoDelete", "Durable", "stream",
		`Prefix is "a.*"`, `QueueType is "lazy"`, `WorkQueueMode is "maybe"`, "Policy.Schedule", "retry 1", "retry 2", "Policy.Jitter is -1",
		"DeadLetters.MaxLength is -1", `TierArguments["x-expires"] is 5`, `DeadLetterArguments["x-overflow"] is "x"`,
	} {
		assert.ErrorContains(t, err, text)
		assert.ErrorContains(t, broken.Validate(), text)
		assert.ErrorContains(t, connected, text)
	}
	_, err = config.NewBuilder(config.Config{})
	assert.ErrorContains(t, err, "AmqpURI is empty")
	assert.ErrorContains(t, err, "Schedule")
	assert.ErrorContains(t, err, "AMQP.Queue.GenerateName is nil")
	assert.NoError(t, configOf().Validate())
	_, err = config.NewBuilder(configOf(func(c *config.Config) {
		c.AMQP, c.WorkQueueMode = amqp.NewNonDurableQueueConfig(uri), topology.Leave
	}))
	assert.NoError(t, err, "a queue that is lost at a restart is allowed with Leave")
}

// printed returns the configuration and a builder of it, if there is one, in all forms in which an app may print them.
func printed(own config.Config) []any {
	type holder struct{ Own *config.Config }
	printed := []any{own, &own, []config.Config{own}, holder{&own}}
	if b, err := config.NewBuilder(own); err == nil {
		type hidden struct{ b *config.Builder }
		printed = append(printed, b, *b, []*config.Builder{b}, hidden{b})
	}
	return printed
}

var addresses = []string{
	"amqp://user:canary@localhost:port/", "amqp://user:canary@local host/", "amqp://user:canary%@localhost/", "http://user:canary@localhost/",
	"amqp://user:can/ary@localhost/", "amqp://user:%zcanary@localhost/", "amqp://user:1#canary@localhost/",
}

func TestNoPasswordInAnError(t *testing.T) {
	for _, address := range addresses {
		_, err := config.NewBuilder(configOf(func(c *config.Config) { c.AMQP.Connection.AmqpURI = address }))
		_, ofReader := config.DeadLetterSubscriberConfig(amqp.NewDurableQueueConfig(address), "")
		for _, err := range []error{err, ofReader} {
			require.ErrorContains(t, err, "AmqpURI cannot be read", address)
			assert.NotContains(t, err.Error(), "ary", address)
		}
		if strings.HasPrefix(address, "http:") {
			continue
		}
		_, err = config.NewBuilder(configOf(func(c *config.Config) { c.Management = address }))
		require.ErrorContains(t, err, "Management: the address must be like")
		assert.NotContains(t, err.Error(), "ary", address)
	}
}

func TestNoPasswordInPrint(t *testing.T) {
	for _, address := range append(addresses, "amqp://user:canary@localhost/", "amqps://user:can%2Fary@localhost:5671/vhost?heartbeat=5") {
		c := configOf(func(c *config.Config) {
			c.AMQP.Connection.AmqpURI, c.Management = address, "http://user:canary@localhost:15672"
			c.AMQP.Connection.AmqpConfig = &amqp091.Config{SASL: []amqp091.Authentication{&amqp091.PlainAuth{Username: "user", Password: "canary"}}}
		})
		for _, printed := range printed(c) {
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x", "% X", "%20v"} {
				text := fmt.Sprintf(verb, printed)
				assert.NotContains(t, text, "ary", "%s of %T, %s", verb, printed, address)
				assert.NotContains(t, strings.ToLower(strings.ReplaceAll(text, " ", "")), fmt.Sprintf("%x", "ary"), "%s of %T, %s", verb, printed, address)
			}
		}
		assert.Equal(t, address, c.AMQP.Connection.AmqpURI, "printing does not change it")
		assert.Contains(t, c.Management, "canary")
	}
	all := fmt.Sprintf("%+v", printed(configOf()))
	assert.Contains(t, all, "amqp://guest:xxxxx@localhost:5672/", "the rest is printed")
	assert.Contains(t, all, "1s 5m 1s")
}

func tables(c amqp.Config) []amqp091.Table {
	return []amqp091.Table{
		c.Queue.Arguments, c.Exchange.Arguments, c.QueueBind.Arguments, c.Consume.Arguments, c.Connection.AmqpConfig.Properties,
	}
}

func TestAppConfigIsNotChanged(t *testing.T) {
	table := func() amqp091.Table { return amqp091.Table{"x-app": "own"} }
	c := configOf(func(c *config.Config) {
		c.AMQP.Connection.Reconnect = &amqp.ReconnectConfig{BackoffMaxInterval: time.Minute}
		c.AMQP.Queue.Arguments, c.AMQP.Exchange.Arguments, c.AMQP.QueueBind.Arguments, c.AMQP.Consume.Arguments = table(), table(), table(), table()
		c.AMQP.Connection.TLSConfig = &tls.Config{ServerName: "own"}
		c.AMQP.Connection.AmqpConfig = &amqp091.Config{Properties: table(), SASL: []amqp091.Authentication{&amqp091.PlainAuth{}}}
	})
	b, err := config.NewBuilder(c)
	require.NoError(t, err)
	same := func(c amqp.Config) {
		t.Helper()
		for _, arguments := range tables(c) {
			assert.Equal(t, table(), arguments)
		}
		assert.Equal(t, "own", c.Connection.TLSConfig.ServerName)
		assert.Equal(t, time.Minute, c.Connection.Reconnect.BackoffMaxInterval)
		assert.Equal(t, &amqp091.PlainAuth{}, c.Connection.AmqpConfig.SASL[0])
	}
	modify := func(c amqp.Config) {
		for _, arguments := range tables(c) {
			arguments["x-app"] = "changed"
		}
		c.Connection.TLSConfig.ServerName = "changed"
		c.Connection.AmqpConfig.SASL[0] = nil
		c.Connection.Reconnect.BackoffMaxInterval = 0
	}
	for range 2 { // changes of a copy reach neither the app's configuration nor another copy
		same(b.SubscriberConfig())
		modify(b.SubscriberConfig())
		same(reader(t, c.AMQP))
		modify(reader(t, c.AMQP))
		b.Topology("orders").WorkQueue.Arguments["x-app"] = "changed"
	}
	assert.Equal(t, "own", b.Topology("orders").WorkQueue.Arguments["x-app"])
	same(c.AMQP)
	modify(c.AMQP)
	c.Policy.Schedule[0] = 0
	same(b.SubscriberConfig())
	assert.Equal(t, "orders.retry.1s", b.Topology("orders").Queues[2].Name)
	assert.Equal(t, "own", b.Topology("orders").WorkQueue.Arguments["x-app"])
}

// TestBuildersAreApart: the middleware of one builder takes messages of its own subscribers only.
func TestBuildersAreApart(t *testing.T) {
	b := builderOf(t)
	tokens := map[string]bool{}
	for _, of := range []*config.Builder{b, b, builderOf(t)} {
		msg, err := of.SubscriberConfig().Marshaler.Unmarshal(configtest.Foreign())
		require.NoError(t, err)
		tokens[msg.Metadata[msgctx.BuilderKey]] = true
	}
	assert.Len(t, tokens, 2)
	assert.NotContains(t, tokens, "")
	letter, err := reader(t, configOf().AMQP).Marshaler.Unmarshal(configtest.Foreign())
	require.NoError(t, err)
	assert.NotContains(t, letter.Metadata, msgctx.BuilderKey, "the retry middleware is not for dead letters")
}

func TestOptionsReachTheTopology(t *testing.T) {
	arguments, limits := amqp091.Table{"x-max-length": 5}, topology.Retention{MaxLength: 10, MaxAge: time.Hour}
	got := builderOf(t, func(c *config.Config) {
		c.AMQP.Queue.Arguments = arguments
		c.Prefix, c.QueueType, c.WorkQueueMode = "again", topology.Classic, topology.Leave
		c.DeadLetters, c.TierArguments, c.DeadLetterArguments = limits, amqp091.Table{"x-max-length": 7}, amqp091.Table{"x-queue-version": 2}
	}).Topology("orders")
	want := topology.New(topology.Config{
		Tiers: configOf().Policy.Schedule.Tiers(), Prefix: "again", QueueType: topology.Classic, WorkQueueMode: topology.Leave,
		DeadLetters: limits, TierArguments: amqp091.Table{"x-max-length": 7}, DeadLetterArguments: amqp091.Table{"x-queue-version": 2},
	}, topology.Queue{Name: "orders", Durable: true, Arguments: arguments})
	assert.Equal(t, want, got)
	assert.Error(t, builderOf(t).Topology("orders.dead").Validate())

	spread := builderOf(t, func(c *config.Config) {
		c.Policy.Schedule, c.Policy.ExtraTiers, c.Policy.Jitter = backoff.Schedule{time.Second}, []time.Duration{time.Hour}, 0.2
	})
	var queues []string
	for _, queue := range spread.Topology("orders").Queues {
		queues = append(queues, queue.Name)
	}
	for _, tier := range append(middleware.Lanes(time.Second, 0.2), time.Hour) {
		assert.Contains(t, queues, "orders.retry."+backoff.Tier(tier).String())
	}

	for group, tiers := range map[string]int{"": 2, "shop": 22} { // 5m is not on the ladder, which a group has by default
		own := builderOf(t, func(c *config.Config) { c.Policy.TierGroup = group })
		assert.Len(t, own.Topology("orders").Queues, tiers+2, "and the orphans and the dead letters")
	}
	for _, group := range []string{"", "shop"} {
		short := builderOf(t, func(c *config.Config) {
			c.Policy.Schedule, c.Policy.TierGroup, c.Policy.ExtraTiers = backoff.Schedule{100 * time.Millisecond}, group, []time.Duration{100 * time.Millisecond}
		})
		queues := short.Topology("orders").Queues
		assert.True(t, slices.ContainsFunc(queues, func(q topology.Queue) bool { return strings.HasSuffix(q.Name, ".retry.1s") }), "%v", queues)
	}
}
