package natsretry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"github.com/tieredretry/watermill-retry/internal/inflight"
	"github.com/tieredretry/watermill-retry/internal/pauses"
	"github.com/tieredretry/watermill-retry/internal/subscriptions"
)

const (
	// pullFor is how long the server keeps a request for messages. It is also how long a request that the server has
	// lost is not noticed, where it lost neither the connection nor the election of a leader.
	pullFor = 30 * time.Second

	// pullSlack is how much later the answer to a request that has ended may come.
	pullSlack = 2 * time.Second

	// restFor is how long a request is waited for that has brought a message, and not yet its last. It is a quarter of
	// the lease where that is less.
	restFor = time.Second

	// A request that is refused, because the messages are for others, is sent again after a pause.
	crowdPause        = time.Millisecond
	longestCrowdPause = 100 * time.Millisecond

	// leaveTimeout is how long a subscription that ends waits for the messages that are under way to it.
	leaveTimeout = time.Second
)

var (
	ack      = []byte("+ACK")
	progress = []byte("+WPI")
	nak      = []byte("-NAK")
)

var errNoConsumer = errors.New("the consumer is gone, or its server is: it is made again")

var errUnanswered = errors.New("the NATS server has not answered a request for messages")

var errLost = errors.New("the connection to NATS was lost")

// queue is an inflight.Queue: a topic as one consumer of NATS reads it. It asks for as many messages as it may have,
// and never while none is waited for, so that no message waits here while another process is idle.
type queue struct {
	*server
	group, topic string
	links        *links
	logger       watermill.LoggerAdapter

	mu     sync.Mutex // held by Take and leave
	next   string     // the subject of requests; empty: the consumer must be made
	sub    *nats.Subscription
	in     chan *nats.Msg
	inbox  string
	pulls  int             // number of the last request
	asked  int             // messages that the last request can still bring; 0: it has ended
	until  time.Time       // when that request ends
	broken <-chan struct{} // closed when the connection was lost since the last request
	crowd  int             // requests in a row that the server has refused, because it has others
	came   []*nats.Msg     // received, and not yet returned
}

// Take implements inflight.Queue. It returns when the request has ended, which it does as soon as the topic has no more
// messages.
func (q *queue) Take(ctx context.Context, n int) ([]*inflight.Taken, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	err := q.begin(ctx, n)
	for err == nil && ctx.Err() == nil && (q.asked > 0 || len(q.came) == 0) {
		if q.asked == 0 {
			err = q.pull(n)
		} else {
			err = q.wait(ctx)
		}
	}
	if ctx.Err() != nil {
		q.end()
		return nil, ctx.Err()
	}
	if len(q.came) == 0 {
		return nil, err
	}
	n = min(n, len(q.came))
	taken := make([]*inflight.Taken, n)
	for i, raw := range q.came[:n] {
		taken[i] = &inflight.Taken{Message: q.read(raw), ID: raw.Reply, Handle: raw}
	}
	q.came = slices.Delete(q.came, 0, n)
	return taken, nil
}

// begin makes the consumer and the subscription to the answers, where they are missing.
func (q *queue) begin(ctx context.Context, n int) error {
	if ctx.Err() != nil { // what a request brings now would stay here until its lease ends
		return ctx.Err()
	}
	if q.next == "" {
		within, cancel := context.WithTimeout(ctx, setupTimeout)
		defer cancel()
		stream, durable, err := q.makeConsumer(within, q.group, q.topic)
		if err != nil {
			return err
		}
		q.links.answered(ctx)
		q.next = "$JS.API.CONSUMER.MSG.NEXT." + stream + "." + durable
	}
	if q.sub != nil && q.sub.IsValid() {
		return nil
	}
	q.inbox, q.in, q.asked = q.Conn.NewInbox(), make(chan *nats.Msg, 4*n+16), 0
	var err error
	q.sub, err = q.Conn.ChanSubscribe(q.inbox+".*", q.in)
	return err
}

// pull asks the server for messages. The request ends when the topic has none after the first (no_wait), or when there
// was none for a time (expires).
func (q *queue) pull(n int) error {
	request, err := json.Marshal(struct {
		Batch   int           `json:"batch"`
		NoWait  bool          `json:"no_wait"`
		Expires time.Duration `json:"expires"`
	}{n, true, pullFor})
	if err != nil {
		return err
	}
	q.broken = q.links.current()
	q.pulls++
	if err := q.Conn.PublishRequest(q.next, q.answer(), request); err != nil {
		return err
	}
	q.asked, q.until = n, time.Now().Add(pullFor+pullSlack)
	return nil
}

// answer is the subject for answers to the last request.
func (q *queue) answer() string { return q.inbox + "." + strconv.Itoa(q.pulls) }

// wait waits for a message or for the end of the request.
func (q *queue) wait(ctx context.Context) error {
	timer := time.NewTimer(time.Until(q.until))
	defer timer.Stop()
	select {
	case raw, open := <-q.in:
		if !open {
			q.sub = nil
			return nats.ErrConnectionClosed
		}
		return q.receive(ctx, raw)
	case <-q.broken: // the server forgets the requests of a connection that is lost
		q.asked = 0
		return nil
	case <-timer.C:
		if len(q.came) == 0 {
			subscriptions.Read(ctx, errUnanswered)
		}
		return q.lost()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lost ends a request whose end was not answered. What it still brings is given back.
func (q *queue) lost() error {
	came := q.came
	q.came = nil
	q.end()
	q.came = came
	return nil
}

// receive reads a message or what the server says about a request.
func (q *queue) receive(ctx context.Context, raw *nats.Msg) error {
	if !strings.HasPrefix(raw.Subject, q.inbox+".") {
		q.links.answered(ctx)
		q.came = append(q.came, raw)
		q.asked = max(0, q.asked-1)
		q.crowd = 0
		q.until = time.Now().Add(min(restFor, q.Lease/4))
		return nil
	}
	if raw.Subject != q.answer() || q.asked == 0 { // of a request that has ended
		return nil
	}
	q.asked = 0
	status, description := raw.Header.Get("Status"), raw.Header.Get("Description")
	if status == "408" || status == "404" {
		q.links.answered(ctx)
	}
	switch {
	case status == "408" && description == "Requests Pending":
		// There are fewer messages than others have asked for.
		_ = pauses.Sleep(ctx, min(crowdPause<<min(q.crowd, 10), longestCrowdPause))
		q.crowd++
		return nil
	case status == "408", status == "404":
		return nil
	case status == "409" && (description == "Leadership Change" || description == "Server Shutdown"):
		return nil
	case status == "503", status == "409" && description == "Consumer Deleted":
		q.next = ""
		return errNoConsumer
	default:
		return fmt.Errorf("the NATS server refuses a request for messages of %q: %s %s", q.topic, status, description)
	}
}

// leave ends the subscription to the answers.
func (q *queue) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.end()
}

// end ends the subscription to the answers, and gives back the messages that are under way.
func (q *queue) end() {
	if q.sub == nil {
		return
	}
	asked := q.asked > 0
	if !asked {
		_ = q.sub.Unsubscribe()
	} else if err := q.sub.Drain(); err == nil && q.Conn.IsConnected() {
		// Drain goes on receiving what the server has sent before it knows of the end.
		ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
		_ = q.Conn.FlushWithContext(ctx)
		cancel()
	}
	for more := true; more; {
		select {
		case raw, open := <-q.in:
			if more = open; open && !strings.HasPrefix(raw.Subject, q.inbox+".") {
				q.came = append(q.came, raw)
			}
		default:
			more = false
		}
	}
	for _, raw := range q.came {
		_ = q.Conn.Publish(raw.Reply, nak)
	}
	q.came, q.sub, q.asked = nil, nil, 0
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
// delivery that it has forgotten: after it was killed, for instance. Then it delivers the message again.
func (q *queue) settle(ctx context.Context, taken []*inflight.Taken, answer []byte) error {
	if len(taken) == 0 {
		return nil
	}
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	go func(broken <-chan struct{}) { // the reply to a request of a connection that is lost does not come
		select {
		case <-broken:
			cancel()
		case <-within.Done():
		}
	}(q.links.current())
	for _, one := range taken {
		if err := q.Conn.Publish(one.ID, answer); err != nil {
			return err
		}
	}
	_, err := q.Conn.RequestWithContext(within, taken[len(taken)-1].ID, progress)
	if within.Err() != nil && ctx.Err() == nil {
		return errLost
	}
	return err
}
