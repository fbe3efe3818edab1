package order_test

import (
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/broker"
	"github.com/tieredretry/watermill-retry/integration/major/amqp"
	"github.com/tieredretry/watermill-retry/integration/testapp"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
	"github.com/tieredretry/watermill-retry/retry"
)

// A sight is all that an app can see of a message: in its marshaler, and in its handler. A dead letter is one, too.
type sight struct {
	Exchange, RoutingKey                                             string
	ContentType, ContentEncoding, CorrelationID, ReplyTo, Expiration string
	MessageID, Type, UserID, AppID, Body, UUID                       string
	Priority, DeliveryMode                                           uint8
	Timestamp                                                        time.Time
	Headers                                                          amqp091.Table
	Metadata                                                         message.Metadata
}

func sightOf(d amqp091.Delivery) sight {
	s := sight{
		Exchange: d.Exchange, RoutingKey: d.RoutingKey, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding,
		CorrelationID: d.CorrelationId, ReplyTo: d.ReplyTo, Expiration: d.Expiration, MessageID: d.MessageId, Type: d.Type,
		UserID: d.UserId, AppID: d.AppId, Body: string(d.Body), Priority: d.Priority, DeliveryMode: d.DeliveryMode,
		Timestamp: d.Timestamp, Headers: maps.Clone(d.Headers),
	}
	for key := range s.Headers {
		if isRecord(key) || key == "x-delivery-count" || key == "x-acquired-count" {
			delete(s.Headers, key)
		}
	}
	return s
}

func isRecord(key string) bool {
	for _, own := range retry.RecordKeys() {
		if key == own {
			return true
		}
	}
	return strings.HasSuffix(key, "_poisoned") || key == "retry_publish_id" || key == "retry_redriven"
}

// later returns a sight without what no retry has, whether its handler keeps an order or not.
func (s sight) later() sight {
	s.Expiration, s.Headers, s.Metadata = "", maps.Clone(s.Headers), maps.Clone(s.Metadata)
	s.DeliveryMode = 0
	for key := range s.Headers {
		if key == "CC" || strings.HasPrefix(key, "x-death") || strings.Contains(key, "-death-") {
			delete(s.Headers, key)
			delete(s.Metadata, key)
		}
	}
	if len(s.Headers) == 0 {
		s.Headers = nil
	}
	return s
}

// A witness is the marshaler of an app, and its handler, which always fails.
type witness struct {
	amqp.DefaultMarshaler
	*world
	failure error

	mu    sync.Mutex
	last  map[string]amqp091.Delivery // by body
	calls map[string][]sight
}

func newWitness(w *world, failure error) *witness {
	return &witness{world: w, failure: failure,
		last: map[string]amqp091.Delivery{}, calls: map[string][]sight{}}
}

func (w *witness) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	w.mu.Lock()
	if before := w.last[string(d.Body)]; len(d.Headers) >= len(before.Headers) { // it gets the strings alone, too
		w.last[string(d.Body)] = d
	}
	w.mu.Unlock()
	return w.DefaultMarshaler.Unmarshal(d)
}

func (w *witness) handle(msg *message.Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	body := string(msg.Payload)
	seen := sight{Body: body}
	if d, ok := w.last[body]; ok { // the app has it as its marshaler
		seen = sightOf(d)
		if seen.Exchange == "" {
			assert.Equal(w.t, w.queue, seen.RoutingKey)
			seen.RoutingKey = ""
		}
		delete(w.last, body)
	}
	seen.UUID, seen.Metadata = msg.UUID, maps.Clone(msg.Metadata)
	maps.DeleteFunc(seen.Metadata, func(key, _ string) bool { return isRecord(key) })
	w.calls[body] = append(w.calls[body], seen)
	return w.failure
}

// seen waits until each message was handled a number of times.
func (w *witness) seen(t *testing.T, messages, times int) map[string][]sight {
	t.Helper()
	all := map[string][]sight{}
	testapp.Eventually(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		all = maps.Clone(w.calls)
		for _, calls := range all {
			if len(calls) < times {
				return false
			}
		}
		return len(all) == messages
	}, "%d messages are handled %d times", messages, times)
	return all
}

// lettersOf looks at dead letters, which stay.
func lettersOf(t *testing.T, queue string, n int) map[string]sight {
	t.Helper()
	testapp.Eventually(t, func() bool { return testapp.Depth(t, queue+".dead") == n }, "%d dead letters", n)
	channel := broker.Channel(t)
	deliveries, err := channel.Consume(queue+".dead", "", false, false, false, false, nil)
	require.NoError(t, err)
	all := map[string]sight{}
	for range n {
		s := sightOf(broker.Receive(t, deliveries, "a dead letter"))
		s.Exchange, s.RoutingKey = "", "" // those of all dead letters of the queue
		all[s.Body] = s
	}
	require.NoError(t, channel.Close())
	testapp.Eventually(t, func() bool { return testapp.Depth(t, queue+".dead") == n }, "they are back")
	return all
}

// full is a message with each property, as a publisher of its own sends it.
func full(body string) amqp091.Publishing {
	return amqp091.Publishing{
		Body: []byte(body), ContentType: "text/plain", ContentEncoding: "identity", CorrelationId: "c", ReplyTo: "replies",
		MessageId: body, Timestamp: time.Unix(1_700_000_000, 0), Type: "t", AppId: "a", Priority: 5, UserId: "guest",
		Headers: amqp091.Table{
			"customer": "customer-1", "_watermill_message_uuid": "uuid of " + body, "int": int32(7), "text": "v\xff",
			"nested": amqp091.Table{"list": []any{int64(1), nil, []byte{0}}}, "time": time.Unix(1_600_000_000, 0),
			"bytes": []byte{1, 2},
		},
	}
}

// foreigners are messages of other publishers, by their bodies. None of the headers that only the library writes is
// believed.
func foreigners() map[string]amqp091.Publishing {
	all := map[string]amqp091.Publishing{"full": full("full"), "bare": {}, "left out": full("left out"), "forged": full("forged")}
	left := all["left out"]
	left.Expiration = "600000"
	left.Headers["CC"] = []any{"elsewhere"}
	left.Headers["x-death"] = []any{amqp091.Table{"queue": "before", "reason": "expired", "count": int64(1)}}
	left.Headers["x-first-death-queue"] = "before"
	forged := all["forged"]
	forged.UserId, forged.Priority = "", 0
	all["left out"], all["forged"] = left, forged
	maps.Copy(forged.Headers, amqp091.Table{
		"retry_exchange": "forged", "retry_routing_key": "forged", "retry_user_id": "root", "retry_priority": byte(9),
		"retry_reply_to": "forged", "retry_opt_delivery_time": int64(1), "retry_expiration": "1", "retry_cc": []any{"forged"},
		"retry_properties": "forged", "retry_unmarshal_error": "forged", "retry_marshal_error": "forged",
	})
	for body, p := range all {
		p.Body = []byte(body)
		all[body] = p
	}
	return all
}

// bind binds a work queue to an exchange that other publishers use.
func bind(t *testing.T, exchange string, queues ...string) {
	t.Helper()
	channel := broker.Channel(t)
	require.NoError(t, channel.ExchangeDeclare(exchange, amqp091.ExchangeTopic, true, false, false, false, nil))
	t.Cleanup(func() { _ = broker.Channel(t).ExchangeDelete(exchange, false, false) })
	for _, queue := range queues {
		require.NoError(t, channel.QueueBind(queue, "orders.*", exchange, false, nil))
	}
}

// TestAMessageOfAnotherPublisherIsTheSame as for a handler that keeps no order, at every call, in the dead letter, and
// after a redrive: through an exchange, through the work queue, and as an AMQP 1.0 client sends it.
func TestAMessageOfAnotherPublisherIsTheSame(t *testing.T) {
	t.Parallel()
	for name, sees := range map[string]bool{"own marshaler": true, "stock marshaler": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ordered, plain := newWorld(t), newWorld(t)
			with, without := newWitness(ordered, errDown), newWitness(plain, errDown)
			for w, is := range map[*world]*witness{ordered: with, plain: without} {
				w.config.Policy.Schedule = backoff.Schedule{50 * time.Millisecond}
				if sees {
					w.config.AMQP.Marshaler = is
				}
			}
			ordered.start(retry.Options{}, with.handle)
			a := testapp.Connect(t, plain.config)
			a.Handle(plain.queue, 1, without.handle)
			a.Run()
			shop := "shop_" + plain.config.Prefix
			bind(t, shop, ordered.queue, plain.queue)
			for _, p := range foreigners() {
				testapp.Send(t, shop, "orders.created", p)
			}
			for _, w := range []*world{ordered, plain} {
				direct := full("direct")
				testapp.Send(t, "", w.queue, direct)
				broker.SendRequests(t, w.queue, 1, "request")
			}
			const n = 6
			got, want := with.seen(t, n, 2), without.seen(t, n, 2)
			for body, calls := range want {
				assert.Equal(t, calls[0], got[body][0], "first call: %s", body)
				assert.Equal(t, calls[1].later(), got[body][1].later(), "second call: %s", body)
			}
			for body, letter := range lettersOf(t, plain.queue, n) {
				assert.Equal(t, letter, lettersOf(t, ordered.queue, n)[body], "dead letter: %s", body)
			}
			for _, w := range []*world{ordered, plain} {
				redriveAll(t, w, n)
			}
			got, want = with.seen(t, n, 4), without.seen(t, n, 4)
			for body, calls := range want {
				assert.Equal(t, calls[2], got[body][2], "redriven: %s", body)
				assert.Equal(t, calls[3].later(), got[body][3].later(), "redriven, second call: %s", body)
			}
			for body, letter := range lettersOf(t, plain.queue, n) {
				assert.Equal(t, letter, lettersOf(t, ordered.queue, n)[body], "redriven, dead letter: %s", body)
			}
		})
	}
}

func redriveAll(t *testing.T, w *world, n int) {
	t.Helper()
	store, err := deadletter.Open(deadletter.Config{URI: broker.URL(t), Prefix: w.config.Prefix}, nil)
	require.NoError(t, err)
	summary, err := store.Redrive(t.Context(), deadletter.QueueOf(w.queue), letters.Redrive{})
	require.NoError(t, err)
	require.Equal(t, letters.Summary{Total: n, Done: n}, summary)
	require.NoError(t, store.Close())
}

// TestABlockedMessageIsTheSame after an operator has retried it, in another process, and in its dead letter.
func TestABlockedMessageIsTheSame(t *testing.T) {
	t.Parallel()
	o, plain := newOperator(t), newWorld(t)
	permanent := backoff.Permanent(errDown)
	with, without := newWitness(o.world, permanent), newWitness(plain, permanent)
	o.config.AMQP.Marshaler, plain.config.AMQP.Marshaler = with, without
	options := retry.Options{Order: retry.Order{Block: true}}
	first := o.start(options, with.handle)
	a := testapp.Connect(t, plain.config)
	a.Handle(plain.queue, 1, without.handle)
	a.Run()
	shop := "shop_" + plain.config.Prefix
	bind(t, shop, o.queue, plain.queue)
	testapp.Send(t, shop, "orders.created", full("full"))
	o.awaitBlocked()
	o.decide("retry")
	with.seen(t, 1, 2)
	o.awaitBlocked()
	first.stop()
	o.start(options, with.handle)
	calls := with.seen(t, 1, 3)["full"]
	for i, call := range calls {
		assert.Equal(t, without.seen(t, 1, 1)["full"][0].later(), call.later(), "call %d", i)
	}
	o.decide("skip")
	assert.Equal(t, lettersOf(t, plain.queue, 1), lettersOf(t, o.queue, 1))
}
