package natsretry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/tieredretry/watermill-retry/internal/inflight"
	"github.com/tieredretry/watermill-retry/internal/pauses"
)

// A request that ends before its time, because the messages are for others, is sent again after a pause.
const (
	crowdPause        = time.Millisecond
	longestCrowdPause = 100 * time.Millisecond
)

var (
	ack      = []byte("+ACK")
	progress = []byte("+WPI")
	nak      = []byte("-NAK")
)

var errNoConsumer = errors.New("the consumer is gone, or its server is: it is made again")

var errLost = errors.New("the connection to NATS was lost")

// queue is an inflight.Queue: a topic as one consumer of NATS reads it. It asks for as many messages as it may have,
// and never while none is waited for, so that no message waits here while another process is idle.
type queue struct {
	*server
	group, topic string
	links        *links
	logger       watermill.LoggerAdapter
	waits        waits

	// Take is not called twice at a time.
	next  string // the subject of requests; empty: the consumer must be made
	crowd int    // requests in a row that have ended before their time
}

// Take implements inflight.Queue. It sends one request after the other, until one has brought messages or has failed.
// A request ends as soon as the topic has no more messages.
func (q *queue) Take(ctx context.Context, n int) ([]*inflight.Taken, error) {
	for ctx.Err() == nil {
		lost, err := q.links.live(ctx)
		if err == nil {
			err = q.prepare(ctx)
		}
		if err != nil {
			return nil, err
		}
		r, err := send(q.Conn, q.next, n, lost.Done(), q.waits)
		if err != nil {
			return nil, err
		}
		err = r.run(ctx)
		if ctx.Err() != nil {
			r.reply(nak)
			break
		}
		if len(r.came) > 0 { // the handler waits for them; what is wrong, the next request shows
			return q.taken(ctx, r.came), nil
		}
		if err == nil {
			err = q.heed(ctx, r.answer)
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, ctx.Err()
}

// prepare makes the consumer where it is missing.
func (q *queue) prepare(ctx context.Context) error {
	if q.next != "" {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()
	stream, durable, err := q.makeConsumer(within, q.group, q.topic)
	if err != nil {
		return err
	}
	q.links.answered(ctx)
	q.next = "$JS.API.CONSUMER.MSG.NEXT." + stream + "." + durable
	return nil
}

// heed reads the answer to a request that has brought nothing. Where it returns no error, the next one can be sent.
func (q *queue) heed(ctx context.Context, answer *nats.Msg) error {
	if answer == nil {
		return nil
	}
	status, description := answer.Header.Get("Status"), answer.Header.Get("Description")
	if status == "408" || status == "404" {
		q.links.answered(ctx)
	}
	switch {
	case status == "408" && description == "Request Timeout":
		q.crowd = 0
		return nil
	case status == "408", status == "404", // there are fewer messages than others have asked for, for instance
		status == "409" && (description == "Leadership Change" || description == "Server Shutdown"):
		_ = pauses.Sleep(ctx, pauses.Doubled(crowdPause, int64(q.crowd), longestCrowdPause))
		q.crowd++
		return nil
	case status == "503", status == "409" && description == "Consumer Deleted":
		q.next = ""
		return errNoConsumer
	default:
		return fmt.Errorf("the NATS server refuses a request for messages of %q: %s %s", q.topic, status, description)
	}
}

// taken returns what a request has brought.
func (q *queue) taken(ctx context.Context, came []*nats.Msg) []*inflight.Taken {
	q.links.answered(ctx)
	q.crowd = 0
	all := make([]*inflight.Taken, len(came))
	for i, raw := range came {
		all[i] = &inflight.Taken{Message: q.read(raw), ID: raw.Reply, Handle: raw}
	}
	return all
}

// read returns the message of a delivery.
func (q *queue) read(raw *nats.Msg) *message.Message {
	if !q.names().IsOwn(q.topic) {
		return unmarshal(raw)
	}
	msg, err := unmarshalCopy(raw)
	if err != nil {
		q.logger.Error("A part of the metadata of a message cannot be read, and is left as it is", err,
			watermill.LogFields{"topic": q.topic, "message_uuid": msg.UUID})
	}
	return msg
}

// Ack implements inflight.Queue.
func (q *queue) Ack(ctx context.Context, taken []*inflight.Taken) error {
	return q.settle(ctx, taken, ack)
}

// Renew implements inflight.Queue. The server does not tell which leases are lost.
func (q *queue) Renew(ctx context.Context, taken []*inflight.Taken) ([]*inflight.Taken, error) {
	return nil, q.settle(ctx, taken, progress)
}

// GiveBack implements inflight.Queue.
func (q *queue) GiveBack(ctx context.Context, taken []*inflight.Taken) error {
	return q.settle(ctx, taken, nak)
}

// settle sends one answer for each message, and then a request for progress, which a consumer always replies to. It has
// read the answers by then, because all travel on one connection to one consumer. It does not reply to the ack of a
// delivery that it has forgotten: after it was killed, for instance. Then it delivers the message again. Nothing waits
// for a connection in the client: by then another process may have the message.
func (q *queue) settle(ctx context.Context, taken []*inflight.Taken, answer []byte) error {
	if len(taken) == 0 {
		return nil
	}
	lost, err := q.links.live(ctx)
	if err != nil {
		return err
	}
	within, cancel := context.WithCancel(ctx) // the reply to a request of a connection that is lost does not come
	defer cancel()
	defer context.AfterFunc(lost, cancel)()
	for _, one := range taken {
		if err := q.Conn.Publish(one.ID, answer); err != nil {
			return err
		}
	}
	_, err = q.Conn.RequestWithContext(within, taken[len(taken)-1].ID, progress)
	if within.Err() != nil && ctx.Err() == nil {
		return errLost
	}
	return err
}
