// Package unfit lists the properties and headers that a message cannot have when it is published again, and where each
// one goes. Every writer of copies calls Move, and every reader Restore. The app sees what it saw at the first
// delivery.
package unfit

import (
	"fmt"
	"strconv"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// A Copy is a kind of message that is published again.
type Copy uint8

// The kinds of copies.
const (
	Waiting  Copy = 1 << iota // on a tier
	Dead                      // in a dead-letter queue
	Redriven                  // a dead letter that goes back to its work queue, without its failure record
	Returned                  // a message that came from a tier, as it is
	// any other message, as it is: an imported letter, or one that changes its place in a queue
	Exact
	Moved // a message of a work queue that goes to the partition of its key
	Sent  // a message that its publisher sends to a partition itself

	every = Waiting | Dead | Redriven | Returned | Exact | Moved
)

// DirectReplyTo is the reply-to of a request of RabbitMQ's direct reply-to. The broker delivers the address of the
// client in its place, except to AMQP 0-9-1 consumers of an AMQP 1.0 publisher's message.
const DirectReplyTo = "amq.rabbitmq.reply-to"

// The names of the properties in the list.
const (
	userID     = "user-id"
	replyTo    = "reply-to"
	expiration = "expiration"
	priority   = "priority"
)

// A Part is a property or a header in the list.
type Part struct {
	Name   string
	Begins bool   // Name begins the names of several headers
	Of     Copy   // the kinds of copies that cannot have it
	Would  string // what the broker would do
	Kept   string // the header of the copy that has the value instead; empty: the value is left out
	// Vouched: the broker has checked the value at the first publish, so it is restored only where no other publisher
	// can have written Kept.
	Vouched bool
}

// Properties are those that a copy cannot have. A user-id of the connection's own user, and a reply-to other than
// DirectReplyTo, are fit. The app has not seen a message that is moved: what other copies leave out is kept for it.
var Properties = []Part{
	{Name: userID, Of: every, Would: "close the channel for another user", Kept: "retry_user_id", Vouched: true},
	{Name: replyTo, Of: every, Would: "close the channel where it does not consume replies", Kept: "retry_reply_to"},
	{Name: expiration, Of: Waiting | Dead | Redriven, Would: "end the wait early, or drop the message"},
	{Name: expiration, Of: Moved, Would: "remove it from its partition", Kept: "retry_expiration"},
	{Name: priority, Of: Waiting | Moved | Sent, Would: "delay the others of the tier, or overtake (4.0)",
		Kept: "retry_priority", Vouched: true},
}

// Headers are those that a copy cannot have. watermill-amqp v3 adds the last one to a message that it received.
var Headers = []Part{
	{Name: "x-opt-delivery-time", Of: every, Would: "delay it, or stop the queue (4.4)",
		Kept: "retry_opt_delivery_time"},
	{Name: "x-delivery-count", Of: every, Would: "take it for its own count"},
	{Name: "x-acquired-count", Of: every, Would: "take it for its own count"},
	{Name: "CC", Of: every &^ Moved, Would: "route the copy to other queues"},
	{Name: "CC", Of: Moved, Would: "route the copy to other queues", Kept: "retry_cc"},
	{Name: "BCC", Of: every, Would: "route the copy to other queues"},
	{Name: "x-death", Of: every &^ (Exact | Moved), Would: "drop the copy as a cycle"},
	{Name: "x-first-death-", Begins: true, Of: every &^ (Exact | Moved),
		Would: "not replace it at the next dead-lettering"},
	{Name: "x-last-death-", Begins: true, Of: every &^ (Exact | Moved),
		Would: "not replace it at the next dead-lettering"},
	{Name: "_watermill_amqp_redelivered", Of: every, Would: "deliver what was true of another delivery"},
}

// begins has the first bytes of the names in Headers, because every header of every delivery is looked up.
var begins = func() (bytes [256]bool) {
	for _, h := range Headers {
		bytes[h.Name[0]] = true
	}
	return bytes
}()

// header returns the entry of a header for some kinds of copies, or nil.
func header(name string, as Copy) *Part {
	if name == "" || !begins[name[0]] {
		return nil
	}
	for i := range Headers {
		h := &Headers[i]
		if h.Of&as != 0 && (h.Name == name || h.Begins && strings.HasPrefix(name, h.Name)) {
			return h
		}
	}
	return nil
}

// IsDropped reports whether no copy that is retried or redriven has the value of a header, under any name.
func IsDropped(name string) bool {
	h := header(name, every&^Moved)
	return h != nil && h.Kept == ""
}

// IsKept reports whether a header of a copy has the value of a property or of another header.
func IsKept(name string) bool {
	return strings.HasPrefix(name, "retry_") && (keeps(Properties, name) || KeepsHeader(name))
}

// KeepsHeader reports whether a header of a copy has the value of another header.
func KeepsHeader(name string) bool { return keeps(Headers, name) }

func keeps(parts []Part, name string) bool {
	for i := range parts {
		if parts[i].Kept == name && name != "" {
			return true
		}
	}
	return false
}

// IsFit reports whether a copy can have a property with this value. user is that of the connection; empty: not known.
func IsFit(name, value, user string) bool {
	switch name {
	case userID:
		return value == user
	case replyTo:
		return value != DirectReplyTo
	}
	return true
}

// maxExpiration is RabbitMQ's bound of milliseconds: ten years.
const maxExpiration = 315_360_000_000

// CheckExpiration returns an error for an expiration for which RabbitMQ closes the channel.
func CheckExpiration(value string) error {
	if value == "" {
		return nil
	}
	if milliseconds, err := strconv.ParseUint(value, 10, 64); err != nil || milliseconds > maxExpiration {
		return fmt.Errorf("expiration is %q, must be whole milliseconds from 0 to %d", value, int64(maxExpiration))
	}
	return nil
}

// Move moves or leaves out what the copy cannot have. user is that of the connection; empty: not known. A header of the
// copy that has a value already keeps it.
func Move(p *amqp091.Publishing, as Copy, user string) {
	keep := func(part *Part, value any) {
		if part.Kept == "" || part.Vouched && as == Redriven { // a reader would not believe it
			return
		}
		if p.Headers == nil {
			p.Headers = amqp091.Table{}
		}
		if _, found := p.Headers[part.Kept]; !found {
			p.Headers[part.Kept] = value
		}
	}
	for i := range Properties {
		part := &Properties[i]
		if part.Of&as == 0 {
			continue
		}
		switch part.Name {
		case priority:
			if p.Priority != 0 {
				keep(part, p.Priority)
				p.Priority = 0
			}
		case expiration:
			if p.Expiration != "" {
				keep(part, p.Expiration)
				p.Expiration = ""
			}
		default:
			value := text(p, part.Name)
			if *value != "" && !IsFit(part.Name, *value, user) {
				keep(part, *value)
				*value = ""
			}
		}
	}
	for name, value := range p.Headers {
		if part := header(name, as); part != nil {
			delete(p.Headers, name)
			keep(part, value)
		}
	}
}

func text(p *amqp091.Publishing, name string) *string {
	if name == userID {
		return &p.UserId
	}
	return &p.ReplyTo
}

// Restore gives a delivery the values that Move has moved: properties to the delivery, and headers to a table. copied
// has the headers of the copy. Without trusted, it leaves out what the broker has vouched for.
func Restore(d *amqp091.Delivery, to, copied amqp091.Table, trusted bool) {
	for i := range Properties {
		part := &Properties[i]
		if part.Vouched && !trusted || part.Kept == "" {
			continue
		}
		value := copied[part.Kept]
		word, _ := value.(string)
		switch {
		case part.Name == priority:
			if number, ok := value.(byte); ok {
				d.Priority = number
			}
		case word == "":
		case part.Name == userID:
			d.UserId = word
		case part.Name == expiration:
			d.Expiration = word
		case part.Name == replyTo:
			d.ReplyTo = word
		}
	}
	for i := range Headers {
		if part := &Headers[i]; part.Kept != "" {
			value, found := copied[part.Kept]
			if _, list := value.([]any); found && (list || part.Name != "CC") { // brokers deliver no other CC
				to[part.Name] = value
			}
		}
	}
}
