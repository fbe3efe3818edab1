package configtest

import (
	"crypto/tls"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/internal/binding"
	"github.com/tieredretry/watermill-retry/internal/edge"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
	"github.com/tieredretry/watermill-retry/retry"
)

// Run runs all tests for a major and its NewBuilder.
func Run[C any, M edge.Major[C]](
	t *testing.T, newBuilder func(Config[C, M]) (*rabbitmq.Builder[C, M], error), m Major[C],
) {
	s := suite[C, M]{m, newBuilder}
	t.Run("all faults are reported at once", s.allFaultsAtOnce)
	t.Run("refused configurations", s.refusals)
	t.Run("no password in an error", s.noPasswordInAnError)
	t.Run("no password in print", s.noPasswordInPrint)
	t.Run("the app's configuration is not changed", s.appConfigIsNotChanged)
	t.Run("options reach the topology", s.optionsReachTheTopology)
	t.Run("tiers that are not declared are refused", s.undeclaredTiersAreRefused)
	t.Run("sources of one broker are equal", s.sourcesOfOneBrokerAreEqual)
	t.Run("messages carry their source", s.messagesCarryTheirSource)
	t.Run("destinations are routing keys of the work queue", s.destinationsAreRoutingKeys)
	t.Run("headers and properties survive any number of retries", s.foreignMessageSurvivesRetries)
	t.Run("record and headers survive any marshaler", s.recordAndHeadersSurviveAnyMarshaler)
	t.Run("the stock marshaler is as any other", s.stockMarshalerIsAsAnyOther)
	t.Run("the app's marshaler gets a retried message as it was first", s.appMarshalerGetsTheFirstDelivery)
	t.Run("an ordinary message gets no metadata", s.ordinaryMessageGetsNoMetadata)
	t.Run("an empty delivery is an error", s.emptyDeliveryIsAnError)
	t.Run("forged headers are ignored", s.forgedHeadersAreIgnored)
	t.Run("headers of the broker are not published again", s.brokerHeadersAreNotPublishedAgain)
	t.Run("string headers of the broker are not published again", s.brokerStringsAreNotPublishedAgain)
	t.Run("a copy ignores dangerous properties of the app", s.copyIgnoresDangerousProperties)
	t.Run("an unreadable message is marked", s.unreadableMessageIsMarked)
	t.Run("errors of marshalers are bounded", s.marshalerErrorsAreBounded)
	t.Run("a message always has metadata", s.messageAlwaysHasMetadata)
	t.Run("all faults of a reader's configuration are reported at once", s.readerFaultsAtOnce)
	t.Run("a reader of dead letters needs only the app's configuration", s.readerNeedsOnlyTheApp)
	t.Run("dead letters are read", s.deadLettersAreRead)
	t.Run("reader of a group", s.readerOfAGroup)
	t.Run("watermill-amqp's publisher is refused", s.stockPublisherIsRefused)
	t.Run("where dead letters failed", s.whereDeadLettersFailed)
	t.Run("dead reasons", s.deadReasons)
}

func (s suite[C, M]) allFaultsAtOnce(t *testing.T) {
	broken := s.config(func(c *Config[C, M], app Fields) {
		app.SetMarshaler(nil)
		*app.NoRequeueOnNack, *app.Transactional, *app.Exclusive, *app.AutoDelete, *app.Durable = true, true, true, true, false
		*app.Queue = amqp091.Table{"x-queue-type": "stream"}
		c.Prefix, c.QueueType, c.WorkQueueMode = "a.*", "lazy", "maybe"
		c.Schedule = backoff.Schedule{0, 2 * backoff.MaxDelay}
		c.Jitter = -1
		c.DeadLetters.MaxLength, c.TierArguments, c.DeadLetterArguments = -1, amqp091.Table{"x-expires": 5}, amqp091.Table{"x-overflow": "x"}
	})
	_, err := s.new(broken)
	require.Error(t, err)
	for _, text := range []string{
		"Marshaler", "NoRequeueOnNack", "Transactional", "Exclusive", "AutoDelete", "Durable", "stream",
		`Prefix is "a.*"`, `QueueType is "lazy"`, `WorkQueueMode is "maybe"`, "Schedule", "retry 1", "retry 2", "Jitter is -1",
		"DeadLetters.MaxLength is -1", `TierArguments["x-expires"] is 5`, `DeadLetterArguments["x-overflow"] is "x"`,
	} {
		assert.ErrorContains(t, err, text)
		assert.ErrorContains(t, broken.Validate(), text)
	}
	_, err = s.new(Config[C, M]{})
	assert.ErrorContains(t, err, "AmqpURI is empty")
	assert.ErrorContains(t, err, "Schedule")
	assert.ErrorContains(t, err, "AMQP.Queue.GenerateName is nil")
	assert.NoError(t, s.config().Validate())
}

func (s suite[C, M]) refusals(t *testing.T) {
	for want, change := range map[string]func(*Config[C, M], Fields){
		"NoRequeueOnNack": func(_ *Config[C, M], app Fields) { *app.NoRequeueOnNack = true },
		"Transactional":   func(_ *Config[C, M], app Fields) { *app.Transactional = true },
		"Queue.Exclusive": func(_ *Config[C, M], app Fields) { *app.Exclusive = true },
		"AutoDelete":      func(_ *Config[C, M], app Fields) { *app.AutoDelete = true },
		"stream": func(_ *Config[C, M], app Fields) {
			*app.Queue = amqp091.Table{"x-queue-type": "stream"}
		},
		"Durable is false":     func(c *Config[C, M], _ Fields) { c.AMQP = s.NonDurableQueue(uri) },
		"reserved for the br":  func(c *Config[C, M], _ Fields) { c.Prefix = "amq.retry" },
		"at most 244":          func(c *Config[C, M], _ Fields) { c.Prefix = strings.Repeat("p", 250) },
		"only the characters":  func(c *Config[C, M], _ Fields) { c.Prefix = "#" },
		"AmqpURI cannot be re": func(_ *Config[C, M], app Fields) { *app.URI = "http://localhost" },
	} {
		_, err := s.new(s.config(change))
		assert.ErrorContains(t, err, want)
	}
	_, err := s.new(s.config(func(c *Config[C, M], _ Fields) {
		c.AMQP, c.WorkQueueMode = s.NonDurableQueue(uri), topology.Leave
	}))
	assert.NoError(t, err, "a queue that is lost at a restart is allowed with Leave")
}

// printed returns the configuration and a builder of it, if there is one, in all forms in which an app may print them.
func (s suite[C, M]) printed(config Config[C, M]) []any {
	type holder struct{ Own *Config[C, M] }
	printed := []any{config, &config, []Config[C, M]{config}, holder{&config}}
	if b, err := s.new(config); err == nil {
		type hidden struct{ b *rabbitmq.Builder[C, M] }
		source := b.TieredRetryConfig(nil).Source
		printed = append(printed, b, *b, []*rabbitmq.Builder[C, M]{b}, hidden{b}, source, *source, source.Broker)
	}
	return printed
}

var addresses = []string{
	"amqp://user:canary@localhost:port/", "amqp://user:canary@local host/", "amqp://user:canary%@localhost/", "http://user:canary@localhost/",
	"amqp://user:can/ary@localhost/", "amqp://user:%zcanary@localhost/", "amqp://user:1#canary@localhost/",
}

func (s suite[C, M]) noPasswordInAnError(t *testing.T) {
	for _, address := range addresses {
		_, err := s.new(s.config(func(_ *Config[C, M], app Fields) { *app.URI = address }))
		require.Error(t, err, address)
		assert.NotContains(t, err.Error(), "ary", address)
		if strings.HasPrefix(address, "http:") {
			continue
		}
		_, err = s.new(s.config(func(c *Config[C, M], _ Fields) { c.Management = address }))
		require.ErrorContains(t, err, "Management: the address must be like")
		assert.NotContains(t, err.Error(), "ary", address)
	}
}

func (s suite[C, M]) noPasswordInPrint(t *testing.T) {
	for _, address := range append(addresses, "amqp://user:canary@localhost/", "amqps://user:can%2Fary@localhost:5671/vhost?heartbeat=5") {
		c := s.config(func(c *Config[C, M], app Fields) {
			*app.URI, c.Management = address, "http://user:canary@localhost:15672"
			*app.Connection = &amqp091.Config{SASL: []amqp091.Authentication{&amqp091.PlainAuth{Username: "user", Password: "canary"}}}
		})
		for _, printed := range s.printed(c) {
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x", "% X", "%20v"} {
				text := fmt.Sprintf(verb, printed)
				assert.NotContains(t, text, "ary", "%s of %T, %s", verb, printed, address)
				assert.NotContains(t, strings.ToLower(strings.ReplaceAll(text, " ", "")), fmt.Sprintf("%x", "ary"), "%s of %T, %s", verb, printed, address)
			}
		}
		assert.Equal(t, address, *valuesOf(c.AMQP).URI, "printing does not change it")
		assert.Contains(t, c.Management, "canary")
	}
	all := fmt.Sprintf("%+v", s.printed(s.config()))
	assert.Contains(t, all, "amqp://guest:xxxxx@localhost:5672/", "the rest is printed")
	assert.Contains(t, all, "1s 5m 1s")
}

func (s suite[C, M]) appConfigIsNotChanged(t *testing.T) {
	table := func() amqp091.Table { return amqp091.Table{"x-app": "own"} }
	c := s.config(func(c *Config[C, M], _ Fields) { c.AMQP = withReconnect(c.AMQP) }, func(_ *Config[C, M], app Fields) {
		*app.Queue, *app.Exchange, *app.QueueBind, *app.Consume = table(), table(), table(), table()
		*app.TLS = &tls.Config{ServerName: "own"}
		*app.Connection = &amqp091.Config{Properties: table(), SASL: []amqp091.Authentication{&amqp091.PlainAuth{}}}
	})
	app := fieldsOf(&c.AMQP)
	longest := *app.Reconnect
	b, err := s.new(c)
	require.NoError(t, err)
	same := func(f Fields) {
		t.Helper()
		for _, arguments := range []amqp091.Table{*f.Queue, *f.Exchange, *f.QueueBind, *f.Consume, (*f.Connection).Properties} {
			assert.Equal(t, table(), arguments)
		}
		assert.Equal(t, "own", (*f.TLS).ServerName)
		assert.Equal(t, longest, *f.Reconnect)
		assert.Equal(t, &amqp091.PlainAuth{}, (*f.Connection).SASL[0])
	}
	modify := func(f Fields) {
		for _, arguments := range []amqp091.Table{*f.Queue, *f.Exchange, *f.QueueBind, *f.Consume, (*f.Connection).Properties} {
			arguments["x-app"] = "changed"
		}
		(*f.TLS).ServerName = "changed"
		(*f.Connection).SASL[0] = nil
		*f.Reconnect = 0
	}
	for range 2 { // changes of a copy reach neither the app's configuration nor another copy
		same(valuesOf(b.SubscriberConfig()))
		modify(valuesOf(b.SubscriberConfig()))
		same(valuesOf(b.DeadLetterSubscriberConfig()))
		modify(valuesOf(b.DeadLetterSubscriberConfig()))
		b.Topology("orders").WorkQueue.Arguments["x-app"] = "changed"
	}
	assert.Equal(t, "own", b.Topology("orders").WorkQueue.Arguments["x-app"])
	same(app)
	modify(app)
	c.Schedule[0] = 0
	same(valuesOf(b.SubscriberConfig()))
	assert.Equal(t, time.Second, b.TieredRetryConfig(nil).Schedule[0])
	assert.Equal(t, "own", b.Topology("orders").WorkQueue.Arguments["x-app"])
}

// undeclaredTiersAreRefused: no queue would bring the messages of such a tier back.
func (s suite[C, M]) undeclaredTiersAreRefused(t *testing.T) {
	tiered := s.builder(t).TieredRetryConfig(gochannel.NewGoChannel(gochannel.Config{}, nil))
	require.NoError(t, tiered.Validate())
	tiered.Schedule = append(tiered.Schedule, 7*time.Second)
	assert.ErrorContains(t, tiered.Validate(), "Schedule, Rules or ExtraTiers have the tier 7s, which is not declared (declared: [1s 5m])")
}

// stockPublisherIsRefused: no queue gets its copies. A wrapper is not seen.
func (s suite[C, M]) stockPublisherIsRefused(t *testing.T) {
	config := s.builder(t).TieredRetryConfig(s.StockPublisher)
	config.MaxHold = -1
	for _, text := range []string{"Publisher: it is watermill-amqp's own, *amqp.Publisher", "Use the publisher of Builder.NewPublisher", "MaxHold is -1ns"} {
		assert.ErrorContains(t, config.Validate(), text)
	}
	for _, other := range []message.Publisher{gochannel.NewGoChannel(gochannel.Config{}, nil), struct{ message.Publisher }{s.StockPublisher}, &publisher.Publisher{}} {
		assert.NoError(t, s.builder(t).TieredRetryConfig(other).Validate(), "%T", other)
	}
}

func (s suite[C, M]) sourcesOfOneBrokerAreEqual(t *testing.T) {
	own := s.builder(t).TieredRetryConfig(nil).Source
	assert.Equal(t, "the builder of amqp://localhost:5672/ (prefix retry)", own.Name)
	assert.Contains(t, own.Subscribe, "amqp.NewSubscriber(builder.SubscriberConfig(), logger)")
	assert.Equal(t, s.config().Schedule.Tiers(), own.DeclaredTiers)
	at := func(address string) func(*Config[C, M], Fields) {
		return func(_ *Config[C, M], app Fields) { *app.URI = address }
	}
	for name, row := range map[string]struct {
		change func(*Config[C, M], Fields)
		equal  bool
	}{
		"nothing":         {func(*Config[C, M], Fields) {}, true},
		"a group":         {func(c *Config[C, M], _ Fields) { c.AMQP = s.PubSub(uri, "billing") }, true},
		"schedule":        {func(c *Config[C, M], _ Fields) { c.Schedule = c.Schedule[:1] }, true}, // DeclaredTiers are compared
		"user, default":   {at("amqp://shop:secret@localhost"), true},
		"prefix, default": {func(c *Config[C, M], _ Fields) { c.Prefix, c.QueueType = "retry", topology.Quorum }, true},
		"prefix":          {func(c *Config[C, M], _ Fields) { c.Prefix = "again" }, false},
		"limits":          {func(c *Config[C, M], _ Fields) { c.DeadLetters.MaxLength = 10 }, false},
		"tier arguments":  {func(c *Config[C, M], _ Fields) { c.TierArguments = amqp091.Table{"x-max-length": 10} }, false},
		"dead letters'": {func(c *Config[C, M], _ Fields) {
			c.DeadLetterArguments = amqp091.Table{"x-quorum-target-group-size": 3}
		}, false},
		"none added":      {func(c *Config[C, M], _ Fields) { c.TierArguments = amqp091.Table{} }, true},
		"type":            {func(c *Config[C, M], _ Fields) { c.QueueType = topology.Classic }, false},
		"port":            {at("amqp://guest:guest@localhost:5673/"), false},
		"host":            {at("amqp://guest:guest@127.0.0.1:5672/"), false},
		"virtual host":    {at("amqp://guest:guest@localhost:5672/shop"), false},
		"its other place": {func(_ *Config[C, M], app Fields) { *app.Connection = &amqp091.Config{Vhost: "shop"} }, false},
	} {
		other := s.builder(t, row.change).TieredRetryConfig(nil).Source
		assert.Equal(t, row.equal, own.Broker == other.Broker, name)
		assert.NotEqual(t, fmt.Sprintf("%p", own.Owner), fmt.Sprintf("%p", other.Owner), name)
	}
	elsewhere := s.builder(t, at("amqps://shop:secret@[::1]/a%2Fb"), func(c *Config[C, M], _ Fields) { c.Prefix = "again" })
	assert.Equal(t, "the builder of amqps://[::1]:5671/a%2Fb (prefix again)", elsewhere.TieredRetryConfig(nil).Source.Name)
}

func (s suite[C, M]) messagesCarryTheirSource(t *testing.T) {
	b := s.builder(t)
	source := b.TieredRetryConfig(nil).Source
	assert.Same(t, source, b.TieredRetryConfig(nil).Source)
	for range 2 {
		msg, err := valuesOf(b.SubscriberConfig()).Marshaler.Unmarshal(Foreign())
		require.NoError(t, err)
		require.NotNil(t, binding.Of(msg))
		assert.Same(t, source, binding.Of(msg).Source)
	}
	letter, err := valuesOf(b.DeadLetterSubscriberConfig()).Marshaler.Unmarshal(Foreign())
	require.NoError(t, err)
	assert.Nil(t, binding.Of(letter), "the retry middleware is not for dead letters")
}

func (s suite[C, M]) optionsReachTheTopology(t *testing.T) {
	arguments, limits := amqp091.Table{"x-max-length": 5}, topology.Retention{MaxLength: 10, MaxAge: time.Hour}
	got := s.builder(t, func(c *Config[C, M], app Fields) {
		*app.Queue = arguments
		c.Prefix, c.QueueType, c.WorkQueueMode = "again", topology.Classic, topology.Leave
		c.DeadLetters, c.TierArguments, c.DeadLetterArguments = limits, amqp091.Table{"x-max-length": 7}, amqp091.Table{"x-queue-version": 2}
	}).Topology("orders")
	want := topology.New(topology.Config{
		Schedule: s.config().Schedule, Prefix: "again", QueueType: topology.Classic, WorkQueueMode: topology.Leave,
		DeadLetters: limits, TierArguments: amqp091.Table{"x-max-length": 7}, DeadLetterArguments: amqp091.Table{"x-queue-version": 2},
	}, topology.Queue{Name: "orders", Durable: true, Arguments: arguments})
	assert.Equal(t, want, got)
	assert.Error(t, s.builder(t).Topology("orders.dead").Validate())

	spread := s.builder(t, func(c *Config[C, M], _ Fields) {
		c.Schedule, c.ExtraTiers, c.Jitter = backoff.Schedule{time.Second}, []time.Duration{time.Hour}, 0.2
	})
	var queues []string
	for _, queue := range spread.Topology("orders").Queues {
		queues = append(queues, queue.Name)
	}
	for _, tier := range append(backoff.Lanes(time.Second, 0.2), time.Hour) {
		assert.Contains(t, queues, "orders.retry."+backoff.Tier(tier).String())
	}
	assert.Equal(t, 0.2, spread.TieredRetryConfig(nil).Jitter)
	assert.Len(t, spread.TieredRetryConfig(nil).DeclaredTiers, 9)

	for _, group := range []string{"", "shop"} {
		short := s.builder(t, func(c *Config[C, M], _ Fields) {
			c.Schedule, c.TierGroup, c.ExtraTiers = backoff.Schedule{100 * time.Millisecond}, group, []time.Duration{}
		})
		declared := []backoff.Tier{backoff.Tier(100 * time.Millisecond), backoff.Tier(time.Second)}
		assert.Equal(t, declared, short.TieredRetryConfig(nil).DeclaredTiers)
		queues := short.Topology("orders").Queues
		assert.True(t, slices.ContainsFunc(queues, func(q topology.Queue) bool { return strings.HasSuffix(q.Name, ".retry.1s") }), "%v", queues)
	}
}

func (s suite[C, M]) destinationsAreRoutingKeys(t *testing.T) {
	tiered := s.builder(t, func(c *Config[C, M], _ Fields) { c.AMQP = s.PubSub(uri, "billing") }).TieredRetryConfig(nil)
	to, err := tiered.GenerateRetryDestination(middleware.RetryDestinationParams{Topic: "orders", Tier: backoff.Tier(1500 * time.Millisecond)})
	require.NoError(t, err)
	assert.Equal(t, retry.Destination{Topic: "1500ms.orders_billing", Queue: "orders_billing.retry.1500ms"}, to)
	to, err = tiered.GenerateDeadLetterDestination(middleware.DeadLetterDestinationParams{Topic: "orders"})
	require.NoError(t, err)
	assert.Equal(t, retry.Destination{Topic: "dead.orders_billing", Queue: "orders_billing.dead"}, to)
}
