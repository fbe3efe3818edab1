package subscriber

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/gate"
	"github.com/tieredretry/watermill-retry/internal/msgctx"
)

// An arrival is a delivery that was received and is not settled.
type arrival struct {
	session  *session
	delivery amqp091.Delivery
	msg      *message.Message
	err      error                   // of Handler.Unmarshal
	key      key                     // of Config.OrderKey
	place    *gate.Place             // taken before the message is handed out
	end      context.CancelCauseFunc // of the context of the message; nil: there is no message
	behind   *arrival                // in a line

	// Only those of a partition have the following.
	of    *msgctx.Delivery // the context of the message
	id    uint64           // of nackCounts; 0: not computed
	kept  *keeping         // nil: it was not kept
	timer *time.Timer      // while it is held until it is due
	again *msgctx.Again
	acked bool
	count int // messages of its key behind it, while it is held
}

// A key is one of a partition: messages on their way to a partition do not wait for those that are there.
type key struct {
	partition int
	of        string // what the app has returned; empty: there is no key
}

// arrivals has those that are used again: each message would allocate one.
var arrivals = sync.Pool{New: func() any { return new(arrival) }}

// A line is a queue of arrivals.
type line struct{ first, last *arrival }

func (l *line) add(a *arrival) {
	if l.first == nil {
		l.first = a
	} else {
		l.last.behind = a
	}
	l.last = a
}

// next takes the first one out of the line. Nil: the line is empty.
func (l *line) next() *arrival {
	a := l.first
	if a != nil {
		l.first, a.behind = a.behind, nil
	}
	return a
}

// remove takes those out of the line for which take returns true.
func (l *line) remove(take func(*arrival) bool) {
	all := *l
	*l = line{}
	for a := all.next(); a != nil; a = all.next() {
		if !take(a) {
			l.add(a)
		}
	}
}

// describe identifies a delivery in a log line.
func describe(a *arrival) string {
	d := a.delivery
	return fmt.Sprintf("message id %q, exchange %q, routing key %q, %d bytes", d.MessageId, d.Exchange, d.RoutingKey,
		len(d.Body))
}
