package deadletter

import (
	"cmp"
	"fmt"
	"maps"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/rabbitmq/headers"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/publisher"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/unfit"
	"github.com/tieredretry/watermill-retry/internal/recordkey"
	"github.com/tieredretry/watermill-retry/internal/redrive"
	"github.com/tieredretry/watermill-retry/letters"
)

// fresh returns what a redrive of a dead letter publishes to its work queue: the message as its handler got it the
// first time, and the history of its redrives, with the trace of its last attempt. The user is that of the
// connection: RabbitMQ closes the channel for another user-id.
//
// The body of a raw dead letter is the payload, and its headers are the metadata: marshal makes the message of it.
func fresh(
	d *amqp091.Delivery, l *letters.Letter, prefix naming.Prefix, entry letters.PastRedrive, user string,
) amqp091.Publishing {
	was := original(d, prefix)
	p := headers.Publishing(&was)
	p.Headers = was.Headers
	p.Headers[recordkey.Redriven] = l.Redriven.Add(entry).String()
	if traceparent := redrive.Traceparent(l.Record); traceparent != "" {
		p.Headers[recordkey.Traceparent] = traceparent
	}
	if exchange := l.Properties["exchange"]; exchange != "" &&
		(l.Kind == letters.Library || l.Kind == letters.Broker) {
		headers.SetOrigin(p.Headers, exchange, l.Properties["routing_key"])
	}
	p.DeliveryMode = amqp091.Persistent
	unfit.Move(&p, unfit.Redriven, user)
	return p
}

// marshal makes of a raw dead letter what the app's marshaler makes of its message, with the properties of the
// letter.
func (s *Store) marshal(l *letters.Letter, p amqp091.Publishing, reason string) (amqp091.Publishing, error) {
	if s.config.Marshal == nil {
		return p, fmt.Errorf("letter %q is raw, because the app's marshaler could not marshal it (%s), so it stays: "+
			"redrive it with a Store that has Config.Marshal", l.ID, reason)
	}
	msg := message.NewMessage(l.ID, l.Payload)
	for key, value := range l.Metadata {
		msg.Metadata[key] = value
	}
	marshaled, err := s.config.Marshal(msg)
	if err != nil {
		return p, fmt.Errorf("letter %q is raw, and Config.Marshal cannot marshal it, so it stays: %w", l.ID, err)
	}
	p.Body = marshaled.Body
	for key := range l.Metadata {
		delete(p.Headers, key)
	}
	delete(p.Headers, publisher.UUIDHeader)
	for key, value := range marshaled.Headers {
		p.Headers[key] = value
	}
	p.ContentType = cmp.Or(p.ContentType, marshaled.ContentType)
	p.Type = cmp.Or(p.Type, marshaled.Type)
	unfit.Move(&p, unfit.Redriven, p.UserId)
	return p, nil
}

// same returns an exact copy of a dead letter or orphan, for the same queue, for an import, and for an orphan on its
// way back through the exchange <prefix>.return. The target of an orphan is in its routing key: publish the copy with
// that key, to the exchange <prefix>.orphans if it is to stay an orphan.
//
// It has what package unfit leaves it. x-death stays in a dead letter that the broker dead-lettered, because it is
// the only record: RabbitMQ 3.10 to 4.3 keep the x-death of a client as it is. It does not stay in an orphan:
// RabbitMQ 3.10 drops a message whose x-death has the queue that it is dead-lettered to.
func same(d *amqp091.Delivery) amqp091.Publishing {
	p := headers.Publishing(d)
	p.Headers = make(amqp091.Table, len(d.Headers)+1)
	maps.Copy(p.Headers, d.Headers)
	as := unfit.Exact
	if naming.IsBack(d.Exchange, d.RoutingKey) {
		as = unfit.Returned
	}
	unfit.Move(&p, as, "")
	return p
}
