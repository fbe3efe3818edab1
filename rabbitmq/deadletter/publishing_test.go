package deadletter

import (
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/failure"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/publish"
)

// full is a delivery with every property.
func full(headers amqp091.Table) *amqp091.Delivery {
	return &amqp091.Delivery{
		Headers: headers, ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: 1, Priority: 4, CorrelationId: "c", ReplyTo: "r",
		Expiration: "60000", MessageId: "m", Timestamp: time.Unix(1700000000, 0), Type: "t", UserId: "web", AppId: "a",
		Exchange: "retry", RoutingKey: "dead.orders", Body: []byte("body"), Redelivered: true, DeliveryTag: 7, ConsumerTag: "x",
	}
}

func TestFreshIsTheMessageOfTheFirstTime(t *testing.T) {
	d := full(everyType())
	maps.Copy(d.Headers, libraryHeaders())
	d.Headers["x-death"], d.Headers["x-delivery-count"], d.Headers["CC"] = deathOf("orders", "rejected", "", ""), int64(1), []any{"other"}
	d.Headers["_watermill_delayed_for"], d.Headers["retry_record"], d.Headers["retry_marshal_error"] = "1s", folded, "no schema"
	before := maps.Clone(d.Headers)
	l := read(d, "orders.dead", naming.Default)
	at := time.Date(2026, 3, 4, 5, 6, 7, 8, time.UTC)

	entry := letters.PastRedrive{Run: "run", At: at, By: "me", Note: "edited", Failures: 3, DeadReason: "rejected", Reason: "full"}
	p := fresh(d, l, naming.Default, entry, "web")

	history, found := letters.ReadRedriven(message.Metadata{recordkey.Redriven: p.Headers[recordkey.Redriven].(string)})
	require.True(t, found)
	assert.Equal(t, letters.Redriven{Times: 1, Redrives: []letters.PastRedrive{{
		Run: "run", At: at.Truncate(time.Millisecond), By: "me", Note: "edited", Failures: 3, DeadReason: "rejected", Reason: "full",
	}}}, history)
	want := everyType()
	want["trace"], want["number"], want["_watermill_message_uuid"] = "abc", int64(7), uuid
	want[recordkey.Redriven] = p.Headers[recordkey.Redriven]
	want["retry_exchange"], want["retry_routing_key"] = "shop", "eu.orders"
	assert.Equal(t, want, p.Headers)
	p.Headers = nil
	assert.Equal(t, amqp091.Publishing{
		ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: amqp091.Persistent, Priority: 4, CorrelationId: "c", ReplyTo: "r",
		MessageId: "m", Timestamp: time.Unix(1700000000, 0), Type: "t", UserId: "web", AppId: "a", Body: []byte("body"),
	}, p)
	assert.Equal(t, before, d.Headers, "the delivery is as before")

	d.Headers[recordkey.Redriven] = history.String()
	p = fresh(d, read(d, "orders.dead", naming.Default), naming.Default, letters.PastRedrive{Run: "second", Failures: 9}, "another")
	history, _ = letters.ReadRedriven(message.Metadata{recordkey.Redriven: p.Headers[recordkey.Redriven].(string)})
	assert.Equal(t, 2, history.Times)
	assert.Equal(t, 9, history.Redrives[1].Failures, "the caller's")
	assert.Empty(t, p.UserId, "of another user the broker closes the channel")
}

// TestFreshKeepsTheTrace: the next attempt links to the last one before. Without the count the message has no record.
func TestFreshKeepsTheTrace(t *testing.T) {
	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for text, want := range map[string]any{traceparent: traceparent, "": nil, strings.Repeat("x", 129): nil} {
		for _, count := range []string{"3", "garbled"} {
			d := full(libraryHeaders())
			d.Headers[recordkey.Failures], d.Headers[recordkey.Traceparent] = count, text
			p := fresh(d, read(d, "orders.dead", naming.Default), naming.Default, letters.PastRedrive{}, "web")
			assert.Equal(t, want, p.Headers[recordkey.Traceparent])
			assert.NotContains(t, p.Headers, recordkey.Failures)
		}
	}
}

// TestARedriveBelievesNoForgedUser: any publisher can write the headers in which the library keeps what the broker has
// checked. They are believed only in a letter that the library dead-lettered.
func TestARedriveBelievesNoForgedUser(t *testing.T) {
	for name, row := range map[string]struct {
		exchange, key string
		death         any
		user          string
		priority      uint8
	}{
		"of the library":                  {"retry", "dead.orders", nil, "guest", 8},
		"of the broker":                   {"retry", "dead.orders", deathOf("orders", "rejected", "", ""), "", 0},
		"published to the queue":          {"", "orders.dead", nil, "", 0},
		"through the exchange of returns": {"retry.return", "1s.orders", nil, "", 0},
		"through an exchange of the app":  {"shop", "dead.orders", nil, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := &amqp091.Delivery{Exchange: row.exchange, RoutingKey: row.key, Headers: libraryHeaders()}
			d.Headers["retry_user_id"], d.Headers["retry_priority"] = "guest", byte(8)
			if row.death != nil {
				d.Headers["x-death"] = row.death
			}
			l := read(d, "orders.dead", naming.Default)
			p := fresh(d, l, naming.Default, letters.PastRedrive{}, "guest")
			assert.Equal(t, row.user, p.UserId)
			assert.Equal(t, row.user, l.Properties["user_id"], "and none is shown")
			assert.Equal(t, row.priority, p.Priority)
		})
	}
}

func TestSameStaysALetter(t *testing.T) {
	d := full(everyType())
	maps.Copy(d.Headers, libraryHeaders())
	want := maps.Clone(d.Headers)
	d.Headers["x-delivery-count"], d.Headers["x-acquired-count"] = int64(19), int64(19)
	d.Headers["CC"], d.Headers["BCC"] = []any{"other"}, []any{"other"}
	before := maps.Clone(d.Headers)

	p := same(d)

	assert.Equal(t, want, p.Headers, "without what the broker counts and routes by")
	p.Headers = nil
	assert.Equal(t, amqp091.Publishing{
		ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: 1, Priority: 4, CorrelationId: "c", ReplyTo: "r",
		Expiration: "60000", MessageId: "m", Timestamp: time.Unix(1700000000, 0), Type: "t", AppId: "a", Body: []byte("body"),
	}, p)
	assert.Equal(t, before, d.Headers, "the delivery is as before")

	delete(d.Headers, "retry_user_id")
	assert.Equal(t, "web", same(d).Headers["retry_user_id"], "only its own user may publish it as a property")
	assert.Equal(t, amqp091.Table{}, same(&amqp091.Delivery{}).Headers)
}

// What the broker dead-lettered has no other record than x-death. An orphan has one, and the broker could drop it for its x-death.
func TestSameKeepsTheRecordOfTheBroker(t *testing.T) {
	headers := amqp091.Table{
		"x-death": deathOf("orders", "delivery_limit", "shop", ""), "x-first-death-queue": "orders", "x-last-death-reason": "delivery_limit",
		"retry_record": folded,
	}
	for _, from := range []struct {
		exchange, key string
		keeps         bool
	}{
		{"retry", "dead.orders", true}, {"", "orders.dead", true}, {"dlx", "10s.orders", true}, {"retry.return", "dead.orders", true},
		{"retry.return", "10s.orders", false}, {"retry.return.any", "10s.orders", false}, {"shop.retry.return", "inbox.orders", false},
		{"retry.orphans", "1500ms.orders", false},
	} {
		d := &amqp091.Delivery{Headers: headers, Exchange: from.exchange, RoutingKey: from.key}
		want := amqp091.Table{"retry_record": folded}
		if from.keeps {
			want = headers
		}
		assert.Equal(t, want, same(d).Headers, "%+v", from)
	}
	d := &amqp091.Delivery{Headers: headers, Exchange: "retry", RoutingKey: "dead.orders"}
	p := same(d)
	copied := &amqp091.Delivery{Headers: p.Headers, RoutingKey: "orders.dead"}
	assert.Equal(t, read(d, "orders.dead", naming.Default), read(copied, "orders.dead", naming.Default), "the copy is the same letter")
}

// A letter that was not written to the socket has no copy, and no queue keeps its confirm back: an import sends it again.
func TestALetterThatWasNotWrittenIsNotUnconfirmed(t *testing.T) {
	for _, unsent := range []bool{true, false} {
		err := error(&failure.Error{Err: publish.ErrNotConfirmed, Cause: os.ErrDeadlineExceeded, Unsent: unsent})
		assert.Equal(t, !unsent, isUnconfirmed(err))
		explained := (&item{}).explain(err)
		assert.Equal(t, !unsent, strings.Contains(explained.Error(), "confirms no letter"), explained)
	}
}

// TestWhereALetterCanGo: a trial of copies asks for the permission to write there, and nowhere else.
func TestWhereALetterCanGo(t *testing.T) {
	for queue, want := range map[string][]destination{
		"orders.dead":   {{"retry", "dead.orders"}, {"", "orders.dead"}},
		"orders":        {{"", "orders"}},
		"retry.orphans": {{"retry.orphans", "dead.retry.orphans"}},
	} {
		copied := line{Queue: queue, Exchange: "retry", RoutingKey: naming.DeadKey(naming.WorkQueueOf(queue))}
		assert.Equal(t, want, copied.destinations("retry"), queue)
	}
}
