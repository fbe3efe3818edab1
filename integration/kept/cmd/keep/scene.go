package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/Azure/go-amqp"
	amqp2 "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/integration/amqp10"
	"github.com/tieredretry/watermill-retry/integration/kept"
)

// A scene is a virtual host in which the states are brought about.
type scene struct {
	uri        string
	client     *rabbithole.Client
	connection *amqp091.Connection
	channel    *amqp091.Channel
	file       *kept.File

	mu    sync.Mutex
	calls map[string]int // of handlers, by kept.Identity
}

// do is the key of metadata that decides what the handlers return.
const do = "do"

func (s *scene) handle(_ string, msg *message.Message) error {
	s.mu.Lock()
	s.calls[kept.Identity(msg.Payload)]++
	s.mu.Unlock()
	word, text, _ := strings.Cut(msg.Metadata[do], " ")
	switch word {
	case "permanent":
		return backoff.Permanent(fmt.Errorf("order %s: %w", text, kept.ErrDown))
	case "panic":
		panic("no such account")
	case "busy":
		return kept.ErrBusy
	case "account":
		return kept.ErrAccount
	case "restart":
		return kept.ErrRestart
	case "after":
		delay, _ := time.ParseDuration(text) // 0 would be no delay, and the message would be missed
		return backoff.RetryAfter(kept.ErrDown, delay)
	}
	return fmt.Errorf("charge %s: %w", word, kept.ErrDown)
}

// called is how often a handler got a message.
func (s *scene) called(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[id]
}

// A letter is a message to send.
type letter struct {
	exchange, queue, id string // the queue is the routing key
	do, later           string
	change              func(*amqp091.Publishing)
}

// send publishes messages.
func (s *scene) send(all ...letter) error {
	for _, l := range all {
		p := amqp091.Publishing{
			DeliveryMode: amqp091.Persistent, Body: []byte(l.id), ContentType: "text/plain",
			Headers: amqp091.Table{"_watermill_message_uuid": "uuid of " + l.id, "trace": "trace of " + l.id},
		}
		if l.do != "" {
			p.Headers[do] = l.do
		}
		if l.later != "" {
			p.Headers[kept.Later] = l.later
		}
		if l.change != nil {
			l.change(&p)
		}
		confirm, err := s.channel.PublishWithDeferredConfirm(l.exchange, l.queue, true, false, p)
		if err != nil {
			return err
		}
		if !confirm.Wait() {
			return fmt.Errorf("%s is not confirmed", l.id)
		}
	}
	return nil
}

// typed gives a message a header of each type, and all properties.
func typed(p *amqp091.Publishing) {
	maps.Copy(p.Headers, amqp091.Table{
		"nil": nil, "bool": true, "byte": byte(200), "int8": int8(-3), "int16": int16(-300), "uint16": uint16(65535),
		"int32": int32(-70000), "uint32": uint32(4e9), "int64": int64(1)<<62 +
			1, "float32": float32(1.5), "float64": 0.1,
		"decimal": amqp091.Decimal{Scale: 2, Value: 314}, "time": time.Unix(1700000000, 0),
		"bytes": []byte{0, 255}, "latin1": "caf\xe9",
		"array": []any{nil, int8(1), "a", amqp091.Table{"deep": []byte("x")}},
		"table": amqp091.Table{"in": amqp091.Table{"t": int16(1)}},
	})
	p.Body = append(p.Body, "\n\x00\xff binary"...)
	p.ContentType, p.ContentEncoding, p.CorrelationId, p.ReplyTo = "application/json", "gzip", "c", "replies"
	p.MessageId, p.Type, p.AppId, p.UserId = "m-1", "t", "shop", "guest"
	p.Priority, p.Timestamp, p.Expiration = 4, time.Unix(1700000000, 0), "600000"
}

// weighing writes a header that AMQP cannot have, and has messages that it cannot write or read.
type weighing struct{ amqp2.DefaultMarshaler }

func (m weighing) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	if kept.Identity(d.Body) == "unreadable" {
		return nil, errors.New("not the format of the app")
	}
	return m.DefaultMarshaler.Unmarshal(d)
}

func (m weighing) Marshal(msg *message.Message) (amqp091.Publishing, error) {
	if msg.Metadata["unwritable"] != "" {
		return amqp091.Publishing{}, errors.New("no format for this message")
	}
	p, err := m.DefaultMarshaler.Marshal(msg)
	if msg.Metadata["weigh"] != "" {
		p.Headers["weight"], p.CorrelationId = math.NaN(), "c"
	}
	return p, err
}

// annotated sends a message with what a publisher of AMQP 1.0 can set. Below 4.0 it has the header only.
func (s *scene) annotated(id string) error {
	if !amqp10.Spoken(s.connection) {
		return s.send(letter{queue: "orders", id: id, do: "permanent 1", change: func(p *amqp091.Publishing) {
			p.Headers["x-opt-delivery-time"] = int64(1700000000000)
		}})
	}
	sender, end, err := amqp10.Dial(context.Background(), s.uri, "orders")
	if err != nil {
		return err
	}
	defer end()
	m := amqp10.Message(id, amqp10.ReplyTo)
	m.Annotations = amqp.Annotations{"x-opt-delivery-time": int64(1700000000000), "x-other": "annotation"}
	m.ApplicationProperties = map[string]any{do: "permanent 1", "_watermill_message_uuid": "uuid of " + id}
	return sender.Send(context.Background(), m, nil)
}

// until waits for an event.
func until(what string, happened func() (bool, error)) error {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if ok, err := happened(); err != nil || ok {
			return err
		}
	}
	return fmt.Errorf("it did not happen within %v: %s", patience, what)
}

// depth waits until a queue has a number of messages that can be taken.
func (s *scene) depth(queue string, messages int) error {
	var have int
	err := until(fmt.Sprintf("%d messages in %s", messages, queue), func() (bool, error) {
		state, err := s.channel.QueueDeclarePassive(queue, true, false, false, false, nil)
		have = state.Messages
		return state.Messages >= messages, err
	})
	if err != nil {
		return fmt.Errorf("%w, which has %d", err, have)
	}
	return nil
}

// take takes one message from each of these queues as soon as it is there, and keeps it.
func (s *scene) take(state string, queues ...string) error {
	return until(fmt.Sprint(state, " in ", queues), func() (bool, error) {
		for _, queue := range slices.Clone(queues) {
			d, found, err := s.channel.Get(queue, true)
			if err != nil {
				return false, err
			}
			if found {
				s.keep(&d, queue, state)
				queues = slices.DeleteFunc(queues, func(q string) bool { return q == queue })
			}
		}
		return len(queues) == 0, nil
	})
}

func (s *scene) keep(d *amqp091.Delivery, queue, state string) {
	s.file.Messages = append(s.file.Messages, kept.Of(d, queue, state))
}

// empty takes all messages of a queue, and keeps them.
func (s *scene) empty(queue, state string) error {
	for {
		d, found, err := s.channel.Get(queue, true)
		if err != nil || !found {
			return err
		}
		s.keep(&d, queue, state)
	}
}
