package configtest

import (
	"crypto/tls"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

// Run runs all tests for a major.
func Run[C any](t *testing.T, m Major[C]) {
	t.Run("all faults at once", m.allFaultsAtOnce)
	t.Run("refusals", m.refusals)
	t.Run("no password in an error", m.noPasswordInAnError)
	t.Run("no password in print", m.noPasswordInPrint)
	t.Run("the app's configuration is never changed", m.neverChanged)
	t.Run("options reach the topology", m.optionsReachTheTopology)
	t.Run("topics are routing keys of the queue", m.topicsAreRoutingKeys)
	t.Run("any number of retries", m.foreignMessageSurvivesAnyNumberOfRetries)
	t.Run("any marshaler", m.recordAndHeadersSurviveWhateverTheAppsMarshalerMakesOfThem)
	t.Run("the app's marshaler sees a retried message as the first time", m.theAppsMarshalerSeesARetriedMessageAsTheFirstTime)
	t.Run("an ordinary message carries nothing extra", m.ordinaryMessageCarriesNothingExtra)
	t.Run("a phantom is an error", m.phantomIsAnError)
	t.Run("forged headers", m.forgedHeadersAreNotBelieved)
	t.Run("headers of the broker's", m.whatTheBrokerWouldCountOrRouteIsNotPublishedAgain)
	t.Run("strings of the broker's", m.stringsOfTheBrokersAreNotPublishedAgainEither)
	t.Run("what the app adds to publishings", m.whatTheAppAddsToPublishingsCannotHurtACopy)
	t.Run("a message that the app cannot read", m.messageThatTheAppCannotReadIsHandedOnMarked)
	t.Run("errors of marshalers", m.errorsOfMarshalersAreBounded)
	t.Run("a message always has metadata", m.alwaysMetadata)
	t.Run("dead letters are read", m.deadLettersAreRead)
	t.Run("why it is dead", m.whyItIsDead)
}

func (m Major[C]) allFaultsAtOnce(t *testing.T) {
	broken := m.config(func(c *Config[C], app Fields) {
		app.SetMarshaler(nil)
		*app.NoRequeueOnNack, *app.Transactional, *app.Exclusive, *app.AutoDelete, *app.Durable = true, true, true, true, false
		*app.Queue = amqp091.Table{"x-queue-type": "stream"}
		c.Prefix, c.QueueType, c.WorkQueueMode = "a.*", "lazy", "maybe"
		c.Schedule = backoff.Schedule{0, 2 * backoff.MaxDelay}
	})
	_, err := m.New(broken)
	require.Error(t, err)
	for _, text := range []string{
		"Marshaler", "NoRequeueOnNack", "Transactional", "Exclusive", "AutoDelete", "Durable", "stream",
		`Prefix is "a.*"`, `QueueType is "lazy"`, `WorkQueueMode is "maybe"`, "Schedule", "retry 1", "retry 2",
	} {
		assert.ErrorContains(t, err, text)
		assert.ErrorContains(t, m.Validate(broken), text)
	}
	_, err = m.New(Config[C]{})
	assert.ErrorContains(t, err, "AmqpURI is empty")
	assert.ErrorContains(t, err, "Schedule")
	assert.NoError(t, m.Validate(m.config()))
}

func (m Major[C]) refusals(t *testing.T) {
	for want, change := range map[string]func(*Config[C], Fields){
		"NoRequeueOnNack":      func(_ *Config[C], app Fields) { *app.NoRequeueOnNack = true },
		"Transactional":        func(_ *Config[C], app Fields) { *app.Transactional = true },
		"Queue.Exclusive":      func(_ *Config[C], app Fields) { *app.Exclusive = true },
		"AutoDelete":           func(_ *Config[C], app Fields) { *app.AutoDelete = true },
		"stream":               func(_ *Config[C], app Fields) { *app.Queue = amqp091.Table{"x-queue-type": "stream"} },
		"Durable is false":     func(c *Config[C], _ Fields) { c.AMQP = m.NonDurableQueue(uri) },
		"the broker's own":     func(c *Config[C], _ Fields) { c.Prefix = "amq.retry" },
		"at most 247":          func(c *Config[C], _ Fields) { c.Prefix = strings.Repeat("p", 250) },
		"patterns":             func(c *Config[C], _ Fields) { c.Prefix = "#" },
		"AmqpURI cannot be re": func(_ *Config[C], app Fields) { *app.URI = "http://localhost" },
	} {
		_, err := m.New(m.config(change))
		assert.ErrorContains(t, err, want)
	}
	_, err := m.New(m.config(func(c *Config[C], _ Fields) { c.AMQP, c.WorkQueueMode = m.NonDurableQueue(uri), topology.Leave }))
	assert.NoError(t, err, "a queue that does not survive, left alone")
}

var addresses = []string{
	"amqp://user:canary@localhost:port/", "amqp://user:canary@local host/", "amqp://user:canary%@localhost/", "http://user:canary@localhost/",
	"amqp://user:can/ary@localhost/", "amqp://user:%zcanary@localhost/", "amqp://user:1#canary@localhost/",
}

func (m Major[C]) noPasswordInAnError(t *testing.T) {
	for _, address := range addresses {
		_, err := m.New(m.config(func(_ *Config[C], app Fields) { *app.URI = address }))
		require.Error(t, err, address)
		assert.NotContains(t, err.Error(), "ary", address)
	}
}

func (m Major[C]) noPasswordInPrint(t *testing.T) {
	for _, address := range append(addresses, "amqp://user:canary@localhost/", "amqps://user:can%2Fary@localhost:5671/vhost?heartbeat=5") {
		c := m.config(func(_ *Config[C], app Fields) {
			*app.URI = address
			*app.Connection = &amqp091.Config{SASL: []amqp091.Authentication{&amqp091.PlainAuth{Username: "user", Password: "canary"}}}
		})
		for _, printed := range m.Printed(c) {
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x", "% X", "%20v"} {
				text := fmt.Sprintf(verb, printed)
				assert.NotContains(t, text, "ary", "%s of %T, %s", verb, printed, address)
				assert.NotContains(t, strings.ToLower(strings.ReplaceAll(text, " ", "")), fmt.Sprintf("%x", "ary"), "%s of %T, %s", verb, printed, address)
			}
		}
		assert.Equal(t, address, *m.fields(c.AMQP).URI, "to print is not to change")
	}
	all := fmt.Sprintf("%+v", m.Printed(m.config()))
	assert.Contains(t, all, "amqp://guest:xxxxx@localhost:5672/", "the rest is printed")
	assert.Contains(t, all, "1s 5m 1s")
}

func (m Major[C]) neverChanged(t *testing.T) {
	table := func() amqp091.Table { return amqp091.Table{"x-app": "own"} }
	c := m.config(func(c *Config[C], _ Fields) { c.AMQP = m.WithReconnect(c.AMQP) }, func(_ *Config[C], app Fields) {
		*app.Queue, *app.Exchange, *app.QueueBind, *app.Consume = table(), table(), table(), table()
		*app.TLS = &tls.Config{ServerName: "own"}
		*app.Connection = &amqp091.Config{Properties: table(), SASL: []amqp091.Authentication{&amqp091.PlainAuth{}}}
	})
	app := m.Fields(&c.AMQP)
	longest := *app.Reconnect
	b, err := m.New(c)
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
	spoil := func(f Fields) {
		for _, arguments := range []amqp091.Table{*f.Queue, *f.Exchange, *f.QueueBind, *f.Consume, (*f.Connection).Properties} {
			arguments["x-app"] = "changed"
		}
		(*f.TLS).ServerName = "changed"
		(*f.Connection).SASL[0] = nil
		*f.Reconnect = 0
	}
	for range 2 { // neither the app's nor another copy
		same(m.fields(b.SubscriberConfig()))
		spoil(m.fields(b.SubscriberConfig()))
		same(m.fields(b.DeadLetterSubscriberConfig()))
		spoil(m.fields(b.DeadLetterSubscriberConfig()))
		b.Topology("orders").WorkQueue.Arguments["x-app"] = "changed"
	}
	assert.Equal(t, "own", b.Topology("orders").WorkQueue.Arguments["x-app"])
	same(app)
	spoil(app)
	c.Schedule[0] = 0
	same(m.fields(b.SubscriberConfig()))
	assert.Equal(t, time.Second, b.TieredRetryConfig(nil).Schedule[0])
	assert.Equal(t, "own", b.Topology("orders").WorkQueue.Arguments["x-app"])
}

func (m Major[C]) optionsReachTheTopology(t *testing.T) {
	arguments := amqp091.Table{"x-max-length": 5}
	got := m.builder(t, func(c *Config[C], app Fields) {
		*app.Queue = arguments
		c.Prefix, c.QueueType, c.WorkQueueMode = "again", topology.Classic, topology.Leave
	}).Topology("orders")
	want := topology.New(topology.Config{
		Schedule: m.config().Schedule, Prefix: "again", QueueType: topology.Classic, WorkQueueMode: topology.Leave,
	}, topology.Queue{Name: "orders", Durable: true, Arguments: arguments})
	assert.Equal(t, want, got)
	assert.Error(t, m.builder(t).Topology("orders.dead").Validate())
}

func (m Major[C]) topicsAreRoutingKeys(t *testing.T) {
	retry := m.builder(t, func(c *Config[C], _ Fields) { c.AMQP = m.PubSub(uri, "billing") }).TieredRetryConfig(nil)
	to, err := retry.GenerateRetryDestination(middleware.RetryDestinationParams{Topic: "orders", Tier: backoff.Tier(1500 * time.Millisecond)})
	require.NoError(t, err)
	assert.Equal(t, middleware.Destination{Topic: "1500ms.orders_billing", Queue: "orders_billing.retry.1500ms"}, to)
	to, err = retry.GenerateDeadLetterDestination(middleware.DeadLetterDestinationParams{Topic: "orders"})
	require.NoError(t, err)
	assert.Equal(t, middleware.Destination{Topic: "dead.orders_billing", Queue: "orders_billing.dead"}, to)
}

// silent is a marshaler that makes nothing of metadata.
type silent struct{}

func (silent) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	return amqp091.Publishing{Body: msg.Payload}, nil
}

func (silent) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	return &message.Message{Payload: d.Body}, nil
}

// alwaysMetadata: v3's subscriber writes into it.
func (m Major[C]) alwaysMetadata(t *testing.T) {
	b := m.builder(t, func(_ *Config[C], app Fields) { app.SetMarshaler(silent{}) })
	for _, c := range []C{b.SubscriberConfig(), b.DeadLetterSubscriberConfig()} {
		msg, err := m.fields(c).Marshaler.Unmarshal(amqp091.Delivery{Acknowledger: Settled{}, Body: []byte("order 1")})
		require.NoError(t, err)
		assert.NotNil(t, msg.Metadata)
	}
}

func (m Major[C]) deadLettersAreRead(t *testing.T) {
	b := m.builder(t, func(c *Config[C], _ Fields) { c.AMQP = m.PubSub(uri, "billing") }, func(_ *Config[C], app Fields) {
		*app.ConsumeExclusive = true
	})
	letters := m.fields(b.DeadLetterSubscriberConfig())
	assert.Equal(t, b.Topology("orders").DeadLetterQueue(), letters.QueueName("orders"))
	assert.Equal(t, "orders_billing.dead", letters.QueueName("orders"))
	assert.Empty(t, letters.ExchangeName("orders"))
	assert.False(t, *letters.ConsumeExclusive)
	msg, err := letters.Marshaler.Unmarshal(amqp091.Delivery{
		Acknowledger: Settled{}, Body: []byte("order 1"), Exchange: "retry", RoutingKey: "dead.orders_billing",
		Headers: amqp091.Table{"x-death": []any{amqp091.Table{"reason": "delivery_limit", "queue": "orders_billing", "time": time.Unix(1, 0)}}},
	})
	require.NoError(t, err)
	record, known := middleware.ReadRecord(msg.Metadata)
	require.True(t, known)
	assert.EqualValues(t, "delivery_limit", record.DeadReason)
}

// whyItIsDead: the last word is the broker's where it dead-lettered the message, whatever the message said before, and the
// middleware's where that did.
func (m Major[C]) whyItIsDead(t *testing.T) {
	b := m.builder(t)
	app, letters := m.fields(b.SubscriberConfig()).Marshaler, m.fields(b.DeadLetterSubscriberConfig()).Marshaler
	deaths := func(reason string) []any {
		return []any{
			amqp091.Table{"reason": reason, "queue": "orders", "time": time.Unix(1700000002, 0)},
			amqp091.Table{"reason": "expired", "queue": "orders.retry.1s", "time": time.Unix(1700000001, 0)},
		}
	}
	letter := func(headers amqp091.Table) amqp091.Delivery {
		return amqp091.Delivery{Acknowledger: Settled{}, Exchange: "retry", RoutingKey: "dead.orders", Headers: headers}
	}
	read := func(t *testing.T, headers amqp091.Table) middleware.Record {
		msg, err := letters.Unmarshal(letter(headers))
		require.NoError(t, err)
		record, known := middleware.ReadRecord(msg.Metadata)
		require.True(t, known)
		return record
	}
	// bury is what the middleware publishes of a message with these headers.
	bury := func(t *testing.T, headers amqp091.Table) amqp091.Table {
		msg, err := app.Unmarshal(amqp091.Delivery{Acknowledger: Settled{}, Exchange: "retry.return", RoutingKey: "1s.orders", Headers: headers})
		require.NoError(t, err)
		msg.Metadata[middleware.FailuresKey], msg.Metadata[middleware.DeadReasonKey] = "4", string(middleware.DeadReasonExhausted)
		p, err := app.Marshal(msg)
		require.NoError(t, err)
		return p.Headers
	}
	t.Run("a foreign reason", func(t *testing.T) {
		record := read(t, amqp091.Table{middleware.DeadReasonKey: "of another's", "x-death": deaths("delivery_limit")})
		assert.Equal(t, middleware.Record{
			Failures: 1, DeadReason: "delivery_limit", Reason: "the broker dead-lettered it from queue orders: delivery_limit",
			FirstFailedAt: time.Unix(1700000002, 0).UTC(), LastFailedAt: time.Unix(1700000002, 0).UTC(),
		}, record)
	})
	t.Run("the middleware's own", func(t *testing.T) {
		headers := bury(t, amqp091.Table{middleware.FailuresKey: "3", "x-death": deaths("expired"), "x-first-death-reason": "expired"})
		record := read(t, headers)
		assert.Equal(t, middleware.DeadReasonExhausted, record.DeadReason)
		assert.Equal(t, 4, record.Failures)
	})
	t.Run("the middleware's own, published again as it is", func(t *testing.T) {
		headers := bury(t, amqp091.Table{middleware.FailuresKey: "3"})
		headers["x-death"] = deaths("delivery_limit") // it kills its process now
		record := read(t, headers)
		assert.EqualValues(t, "delivery_limit", record.DeadReason)
		assert.Equal(t, 5, record.Failures)
	})
	t.Run("the broker's, published again as it is", func(t *testing.T) {
		record := read(t, bury(t, amqp091.Table{"x-death": deaths("delivery_limit"), "x-last-death-reason": "delivery_limit"}))
		assert.Equal(t, middleware.DeadReasonExhausted, record.DeadReason)
	})
	t.Run("parked, then dead", func(t *testing.T) { // an orphan's story ends on its tier
		record := read(t, bury(t, amqp091.Table{middleware.FailuresKey: "3", "x-death": deaths("expired")[1:]}))
		assert.Equal(t, middleware.DeadReasonExhausted, record.DeadReason)
	})
}
