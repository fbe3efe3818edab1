package headers_test

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tieredretry/watermill-retry/internal/configtest"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/app"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/unfit"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/retry"
)

// forged are headers that only the library writes, as another publisher sends them.
var forged = amqp091.Table{
	"retry_exchange": "forged", "retry_routing_key": "forged", "retry_user_id": "root", "retry_priority": byte(9),
	"retry_reply_to": "forged", "retry_expiration": "1", "retry_opt_delivery_time": int64(1), "retry_cc": []any{"forged"},
}

// partitioned is the delivery of a partition of what was published there.
func partitioned(p amqp091.Publishing) amqp091.Delivery {
	return amqp091.Delivery{
		Exchange: "orders.order", RoutingKey: "3", Headers: p.Headers, ContentType: p.ContentType,
		ContentEncoding: p.ContentEncoding, DeliveryMode: p.DeliveryMode, Priority: p.Priority, CorrelationId: p.CorrelationId,
		ReplyTo: p.ReplyTo, Expiration: p.Expiration, MessageId: p.MessageId, Timestamp: p.Timestamp, Type: p.Type,
		UserId: p.UserId, AppId: p.AppId, Body: p.Body,
	}
}

// TestAPartitionHasWhatTheWorkQueueHad: what the broker would act on is in other headers meanwhile.
func TestAPartitionHasWhatTheWorkQueueHad(t *testing.T) {
	full := amqp091.Delivery{
		Exchange: "shop", RoutingKey: "orders.created", UserId: "web", ReplyTo: unfit.DirectReplyTo, Expiration: "1",
		Priority: 5, ContentType: "a", ContentEncoding: "b", CorrelationId: "c", MessageId: "d", Type: "e", AppId: "f",
		Timestamp: time.Unix(1, 0), DeliveryMode: 1, Body: []byte("body"),
		Headers: amqp091.Table{
			"x-opt-delivery-time": int64(1), "CC": []any{"mail"}, "x-death": []any{"a"}, "x-first-death-queue": "b",
			"own": int32(1), "retry_record": "n1:1", recordkey.Failures: "2",
		},
	}
	direct := amqp091.Delivery{RoutingKey: "orders"}
	copied := amqp091.Delivery{RoutingKey: "orders.created"} // to the default exchange, with a CC
	for name, first := range map[string]amqp091.Delivery{"full": full, "direct": direct, "copied": copied} {
		t.Run(name, func(t *testing.T) {
			sent := first
			sent.Headers = maps.Clone(first.Headers)
			if name == "full" {
				maps.Copy(sent.Headers, forged)
			}
			p := headers.Moved(sent, "orders", naming.Default)
			assert.Equal(t, []any{"", "", "", uint8(0)}, []any{p.UserId, p.ReplyTo, p.Expiration, p.Priority})
			assert.NotContains(t, p.Headers, "x-opt-delivery-time")
			assert.NotContains(t, p.Headers, "CC")
			assert.Equal(t, first, headers.Unmoved(partitioned(p), "orders"))
		})
	}
	assert.Empty(t, headers.Moved(direct, "orders", naming.Default).Headers)
}

// TestAPublisherToAPartitionIsNotTheMover: the app's own headers are no properties, as on the way through the work
// queue.
func TestAPublisherToAPartitionIsNotTheMover(t *testing.T) {
	p := amqp091.Publishing{Headers: maps.Clone(forged), UserId: "web", Expiration: "1", Priority: 5}
	p.Headers["own"] = "1"
	headers.Direct(&p)
	assert.Zero(t, p.Priority, "it would overtake")
	assert.Equal(t, amqp091.Delivery{
		RoutingKey: "orders", UserId: "web", Expiration: "1", Priority: 5, Headers: amqp091.Table{"own": "1"},
	}, headers.Unmoved(partitioned(p), "orders"))
}

// routed puts exchange and routing key into the metadata, as apps with a topic exchange do.
type routed struct{ textual }

func (r routed) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	msg, err := r.textual.Unmarshal(d)
	if err == nil {
		msg.Metadata["from"] = d.Exchange + "/" + d.RoutingKey + "/" + d.UserId
	}
	return msg, err
}

// TestRedrivenMessageHasItsExchange: a redriven message comes through the default exchange, where any publisher can write headers. It has
// the exchange and routing key that it was first published with, and not the user-id, which a broker has checked.
func TestRedrivenMessageHasItsExchange(t *testing.T) {
	const history = `{"times":1,"redrives":[]}`
	transport := amqp091.Table{"retry_exchange": "shop", "retry_routing_key": "eu.orders", "retry_user_id": "forged", "retry_priority": byte(9)}
	for name, test := range map[string]struct {
		exchange string
		history  any
		want     string
		copied   any // the header retry_exchange of the next copy
	}{
		"redriven":              {"", history, "shop/eu.orders/", "shop"},
		"never redriven":        {"", nil, "/orders/", nil},
		"from another exchange": {"app", history, "app/orders/", "app"},
	} {
		delivery := amqp091.Delivery{Acknowledger: new(amqp091.Channel), Exchange: test.exchange, RoutingKey: "orders", Headers: amqp091.Table{}}
		for key, value := range transport {
			delivery.Headers[key] = value
		}
		if test.history != nil {
			delivery.Headers[recordkey.Redriven] = test.history
		}
		msg := readBy(t, headers.New(routed{}, naming.Default), delivery)
		assert.Equal(t, test.want, msg.Metadata["from"], name)
		assert.NotContains(t, msg.Metadata, "retry_exchange")

		plain := headers.New(app.Plain{Marshaler: textual{}, UUIDKey: publisher.UUIDHeader}, naming.Default)
		msg = readBy(t, plain, delivery)
		msg.Metadata[recordkey.Failures] = "1"
		waiting := writtenBy(t, plain, msg)
		assert.Equal(t, test.copied, waiting.Headers["retry_exchange"], "the next copy, %s", name)
	}
}

// TestWhatACopyCannotHaveComesBack: no copy has a part of the list, and the next delivery has each one that is kept.
func TestWhatACopyCannotHaveComesBack(t *testing.T) {
	first := amqp091.Delivery{
		Acknowledger: configtest.Settled{}, Exchange: "shop", UserId: "web", ReplyTo: unfit.DirectReplyTo, Expiration: "1", Priority: 3,
		Headers: amqp091.Table{},
	}
	for i, h := range unfit.Headers {
		first.Headers[h.Name] = int64(i)
	}
	for name, dead := range map[string]string{"waiting": "", "dead": "exhausted"} {
		t.Run(name, func(t *testing.T) {
			m := headers.New(textual{}, naming.Default)
			next := first
			for range 3 {
				msg := readBy(t, m, next)
				msg.Metadata[recordkey.Failures] = "1"
				if dead != "" {
					msg.Metadata[recordkey.DeadReason] = dead
				}
				p := writtenBy(t, m, msg)
				assert.Empty(t, p.UserId+p.ReplyTo+p.Expiration)
				for _, h := range unfit.Headers {
					assert.NotContains(t, p.Headers, h.Name)
					if h.Kept != "" && h.Of&unfit.Waiting != 0 {
						assert.Equal(t, first.Headers[h.Name], p.Headers[h.Kept])
					}
				}
				next = amqp091.Delivery{
					Acknowledger: configtest.Settled{}, Exchange: naming.Default.ReturnExchange(), RoutingKey: "1s.orders", UserId: p.UserId, ReplyTo: p.ReplyTo,
					Priority: p.Priority, Headers: p.Headers,
				}
				was := headers.Original(&next, true)
				assert.Equal(t, []any{first.UserId, first.ReplyTo, first.Priority}, []any{was.UserId, was.ReplyTo, was.Priority})
			}
		})
	}
}

// TestWhatTheBrokerVouchedForIsNotBelievedAfterARedrive: any publisher can write the headers of a message on the
// default exchange.
func TestWhatTheBrokerVouchedForIsNotBelievedAfterARedrive(t *testing.T) {
	d := amqp091.Delivery{Headers: amqp091.Table{
		"retry_user_id": "root", "retry_priority": byte(9), "retry_reply_to": unfit.DirectReplyTo, "retry_opt_delivery_time": int64(1),
	}}
	to := amqp091.Table{}
	unfit.Restore(&d, to, d.Headers, false)
	assert.Equal(t, []any{"", byte(0), unfit.DirectReplyTo}, []any{d.UserId, d.Priority, d.ReplyTo})
	assert.Equal(t, amqp091.Table{"x-opt-delivery-time": int64(1)}, to)
}

// TestOutcomesListsWhatACopyCannotHave, with the header that has the value instead.
func TestOutcomesListsWhatACopyCannotHave(t *testing.T) {
	page, err := os.ReadFile("../../../docs/outcomes.md")
	require.NoError(t, err)
	for _, part := range append(append([]unfit.Part{}, unfit.Properties...), unfit.Headers...) {
		name := part.Name
		if part.Begins {
			name += "*"
		}
		to := "left out"
		if part.Kept != "" {
			to = fmt.Sprintf("`%s`", part.Kept)
		}
		assert.Regexp(t, fmt.Sprintf(`(?m)^\| [^|\n]*%s[^|\n]* \| %s \| `, regexp.QuoteMeta("`"+name+"`"), to), string(page), name)
	}
}

// writesUUID writes the UUID into a header, or the property message-id, and the metadata into headers.
type writesUUID struct {
	textual
	key string // empty: the property message-id
}

func (m writesUUID) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	p := amqp091.Publishing{Headers: amqp091.Table{}, Body: msg.Payload, AppId: "app"}
	for key, value := range msg.Metadata {
		p.Headers[key] = value
	}
	if m.key == "" {
		p.MessageId = msg.UUID
	} else {
		p.Headers[m.key] = msg.UUID
	}
	return p, nil
}

// TestTheLastFormHasTheUUIDWhereTheMarshalerReadsIt, and nothing else of the message but body and record.
func TestTheLastFormHasTheUUIDWhereTheMarshalerReadsIt(t *testing.T) {
	for name, key := range map[string]string{"own header": "my_id", "message-id": "", "usual header": publisher.UUIDHeader} {
		t.Run(name, func(t *testing.T) {
			msg := message.NewMessage("id-1", []byte("order 1"))
			record := retry.Record{Failures: 1, DeadReason: retry.DeadReasonRefused, LeftOff: "why"}
			record.Write(msg.Metadata)
			msg.Metadata["same"] = msg.UUID
			p := writtenBy(t, headers.New(writesUUID{key: key}, naming.Default), msg)
			want := amqp091.Table{
				recordkey.Failures: "1", recordkey.DeadReason: "refused",
				recordkey.LeftOff: "properties app-id; headers same: why",
			}
			if key != "" {
				want[key] = "id-1"
				assert.Empty(t, p.MessageId)
			} else {
				assert.Equal(t, "id-1", p.MessageId)
			}
			assert.Equal(t, want, p.Headers)
			assert.Equal(t, "order 1", string(p.Body))
		})
	}
}

const history = `{"times":1,"redrives":[{"by":"ann@ops"}]}`

// bare knows no metadata: it drops each header but the UUID's.
type bare struct{}

func (bare) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	return amqp091.Publishing{Body: msg.Payload, Headers: amqp091.Table{publisher.UUIDHeader: msg.UUID}}, nil
}

func (bare) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	uuid, _ := d.Headers[publisher.UUIDHeader].(string)
	return message.NewMessage(uuid, d.Body), nil
}

// texts makes a text of each header.
type texts struct{ textual }

func (m texts) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	table := amqp091.Table{}
	for key, value := range d.Headers {
		table[key] = fmt.Sprint(value)
	}
	d.Headers = table
	return m.textual.Unmarshal(d)
}

// The record, headers of all types and the history of redrives stay with the message on its tiers and in its dead letter,
// whatever the app's marshaler keeps.
func TestTheHistorySurvivesTheMarshaler(t *testing.T) {
	for name, app := range map[string]app.Marshaler{
		"drops metadata": bare{}, "keeps it": textual{}, "makes texts": texts{}, "the stock one": app.Plain{Marshaler: textual{}, UUIDKey: publisher.UUIDHeader},
	} {
		for _, why := range []retry.DeadReason{"", retry.DeadReasonExhausted} {
			m := headers.New(app, naming.Default)
			msg := readBy(t, m, amqp091.Delivery{
				Acknowledger: configtest.Settled{}, RoutingKey: "orders",
				Headers: amqp091.Table{publisher.UUIDHeader: "uuid-1", recordkey.Redriven: history, "number": int64(7)},
			})
			assert.Equal(t, history, msg.Metadata[recordkey.Redriven], name)
			_, retried := retry.ReadRecord(msg.Metadata)
			assert.False(t, retried, "%s: it has no record", name)

			retry.Record{Failures: 1, Topic: "orders", DeadReason: why}.Write(msg.Metadata)
			p := writtenBy(t, m, msg)
			assert.Equal(t, history, p.Headers[recordkey.Redriven], "%s %s", name, why)
			assert.Equal(t, int64(7), p.Headers["number"], "%s %s", name, why)

			back := configtest.ComeBack(p)
			reader := m
			if why != "" {
				reader = headers.NewDeadLetters(app)
				back.Exchange, back.RoutingKey = "retry", "dead.orders"
			}
			again := readBy(t, reader, back)
			assert.Equal(t, history, again.Metadata[recordkey.Redriven], "%s %s", name, why)
			record, _ := retry.ReadRecord(again.Metadata)
			assert.NotZero(t, record.Failures, name)
			if why == "" {
				p = writtenBy(t, m, again)
				assert.Equal(t, int64(7), p.Headers["number"], "%s, after one more failure", name)
			}
		}
	}
}
