// Package inflight reads the topics of servers that lease their messages: Redis, NATS, PostgreSQL. Several messages of
// a topic are in flight, and a lease lasts as long as the handler needs.
package inflight

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// Queue is a topic of a server, as one consumer group reads it. Its methods are called by several goroutines.
type Queue interface {
	// Take waits for messages, and returns at most n. Nothing else gets them before their leases end.
	Take(ctx context.Context, n int) ([]*Taken, error)

	// Ack removes messages for good.
	Ack(ctx context.Context, taken []*Taken) error

	// Renew begins the leases of messages anew. It returns those that are lost: another reader has got them. A server
	// that does not tell has none.
	Renew(ctx context.Context, taken []*Taken) (lost []*Taken, err error)

	// GiveBack ends the leases of messages, so that they are delivered again.
	GiveBack(ctx context.Context, taken []*Taken) error
}

// Taken is a message with a lease. ID or Handle is what its Queue needs to settle it.
type Taken struct {
	Message *message.Message
	ID      string
	Handle  any

	// The lock of the Reader guards these.
	lease   time.Time // its end
	ended   bool      // its end was seen
	settled bool      // whether the handler has settled it
}

// lost reports whether the lease has ended: another reader may have the message. It stays so.
func (t *Taken) lost() bool {
	t.ended = t.ended || !time.Now().Before(t.lease)
	return t.ended
}

// Config configures a Reader.
type Config struct {
	Queue Queue
	Name  string // the name of the topic, for logs

	// Concurrency is how many messages a handler has at a time. As many more are taken ahead, or up to 7 times as many
	// where its calls are short. With 1 there are none.
	Concurrency int

	// Lease is how long the server keeps a message for a reader that does not renew it. It is renewed each third of it.
	Lease time.Duration

	Logger watermill.LoggerAdapter
}
