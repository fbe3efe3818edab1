package natsretry

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
)

// No two groups and topics share a consumer, no two topics a stream, and NATS takes all names.
func TestNamesAreUniqueAndSafe(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("l", 200)
	consumers, streams := map[string]bool{}, map[string]bool{}
	topics := []string{
		"orders", "orders.eu", "orders_eu", "orders-eu", "orders.*", "orders.>", "bestellungen-ä", "a\x00", long, long + "x",
	}
	for _, topic := range topics {
		for _, group := range []string{"billing", "billing.orders", "billing_orders", "a b", "\xff", "\xfe", long} {
			name := durableName(group, topic)
			assert.False(t, consumers[name], name)
			consumers[name] = true
			assert.Equal(t, name, sanitized(name))
			assert.LessOrEqual(t, len(name), 120)
		}
		name := streamName(topic)
		assert.False(t, streams[name], name)
		streams[name] = true
		assert.Equal(t, name, sanitized(name))
		assert.LessOrEqual(t, len(name), 120)
	}
	assert.Equal(t, "orders", streamName("orders"))
	assert.Contains(t, durableName("billing", "orders.eu"), "billing_orders_eu-")
}

func TestAServerWithoutScheduledMessagesIsRefused(t *testing.T) {
	t.Parallel()
	of := func(allowed bool, metadata map[string]string) error {
		return scheduled(jetstream.StreamConfig{Name: "retry", AllowMsgSchedules: allowed, Metadata: metadata})
	}
	assert.NoError(t, of(true, map[string]string{levelKey: "2", versionKey: "2.12.0"}))
	assert.NoError(t, of(true, map[string]string{levelKey: "4", versionKey: "2.15.3"}))
	for name, err := range map[string]error{
		"2.11": of(true, map[string]string{levelKey: "1", versionKey: "2.11.9"}),
		"2.10": of(true, nil), // it keeps what it does not know
		"2.9":  of(false, nil),
	} {
		assert.ErrorContains(t, err, "the stream retry is led by a NATS server of version", name)
		assert.ErrorContains(t, err, "upgrade all servers of the cluster to 2.12 or later", name)
	}
	assert.ErrorContains(t, of(true, map[string]string{levelKey: "1", versionKey: "2.11.9"}), `"2.11.9"`)
}

func TestAStreamThatWouldLoseMessagesIsRefused(t *testing.T) {
	t.Parallel()
	s := &server{Config: Config{Prefix: "retry"}, stream: "retry"}
	good := jetstream.StreamConfig{Subjects: []string{"retry.>"}, Retention: jetstream.WorkQueuePolicy}
	assert.NoError(t, s.check(good))
	for fault, change := range map[string]func(*jetstream.StreamConfig){
		"its subjects are":            func(c *jetstream.StreamConfig) { c.Subjects = []string{"retry.>", "other"} },
		"its retention is":            func(c *jetstream.StreamConfig) { c.Retention = jetstream.LimitsPolicy },
		"its storage is":              func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage },
		"its MaxAge is":               func(c *jetstream.StreamConfig) { c.MaxAge = 1 },
		"it has a limit, at which it": func(c *jetstream.StreamConfig) { c.MaxBytes = 1 << 30 },
		"MaxMsgsPerSubject must be":   func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 },
		"its Discard is New":          func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardNew },
		"its PersistMode is async":    func(c *jetstream.StreamConfig) { c.PersistMode = jetstream.AsyncPersistMode },
		"its MaxMsgSize is 1000000":   func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1_000_000 },
		"its DenyDelete is true":      func(c *jetstream.StreamConfig) { c.DenyDelete = true },
		`from "retry.>" to "other.>"`: func(c *jetstream.StreamConfig) {
			c.SubjectTransform = &jetstream.SubjectTransformConfig{Source: "retry.>", Destination: "other.>"}
		},
		"NoAck is true": func(c *jetstream.StreamConfig) { c.NoAck = true },
	} {
		c := good
		change(&c)
		assert.ErrorContains(t, s.check(c), fault)
	}
}
