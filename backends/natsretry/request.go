package natsretry

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

var errUnanswered = errors.New("the NATS server has not answered a request for messages")

// waits are how long a request is waited for.
type waits struct {
	expires time.Duration // the server keeps a request for so long
	slack   time.Duration // its answer may come so much later
	rest    time.Duration // for what is under way when a part has come
}

// newWaits returns the times for a lease. The server keeps a request for 30 seconds. That is also how long a request
// that it has lost is not noticed, where it lost neither the connection nor the election of a leader.
func newWaits(lease time.Duration) waits {
	return waits{expires: 30 * time.Second, slack: 2 * time.Second, rest: min(time.Second, lease/8)}
}

// request is one request for messages. Each has a subscription of its own: a delivery does not name its request, and
// the server serves one as long as a client listens, also on the next connection.
//
//	waiting ── a message ──► bringing ── the last message ──► complete
//	waiting, bringing ── the answer of its end ─────────────► complete
//	waiting, bringing ── no answer in time, another connection, another leader, the end of ctx ──► given up
//
// The subscription of a complete request ends at once. Where it is given up, messages can be under way: they are
// received first, because otherwise no process has them until their leases end. None is left at the end of a Take.
type request struct {
	conn    *nats.Conn
	waits   waits
	lost    <-chan struct{} // closed when the connection was replaced or closed
	sub     *nats.Subscription
	in      chan *nats.Msg // with room for all that it can bring
	missing int            // messages that it can still bring; 0: it is complete
	came    []*nats.Msg
	renewed time.Time // when the oldest lease began
	answer  *nats.Msg // what the server said about its end
}

// answers is how many answers a request can get, with some of other servers of a cluster.
const answers = 8

// send sends a request for n messages. It ends when the topic has none after the first (no_wait), or when there was
// none for a time (expires).
func send(conn *nats.Conn, next string, n int, lost <-chan struct{}, w waits) (*request, error) {
	body, err := json.Marshal(struct {
		Batch   int           `json:"batch"`
		NoWait  bool          `json:"no_wait"`
		Expires time.Duration `json:"expires"`
	}{n, true, w.expires})
	if err != nil {
		return nil, err
	}
	r := &request{conn: conn, waits: w, lost: lost, in: make(chan *nats.Msg, n+answers), missing: n}
	if r.sub, err = conn.ChanSubscribe(conn.NewInbox(), r.in); err != nil {
		return nil, err
	}
	if err := conn.PublishRequest(next, r.sub.Subject, body); err != nil {
		_ = r.sub.Unsubscribe()
		return nil, err
	}
	return r, nil
}

// run waits until the request has ended. Its messages are in came.
func (r *request) run(ctx context.Context) error {
	defer r.end()
	timer := time.NewTimer(r.waits.expires + r.waits.slack)
	defer timer.Stop()
	for r.missing > 0 && r.answer == nil {
		select {
		case raw := <-r.in:
			r.receive(raw)
			timer.Reset(r.waits.rest)
		case <-timer.C:
			if len(r.came) == 0 {
				return errUnanswered
			}
			return nil
		case <-r.lost:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// receive reads a message, or what the server says about the request. It renews the leases where the messages come
// slowly.
func (r *request) receive(raw *nats.Msg) {
	if raw.Subject == r.sub.Subject {
		r.answer = raw
		if status := raw.Header.Get("Status"); status == "404" || status == "408" {
			r.missing = 0
		}
		return
	}
	r.came = append(r.came, raw)
	r.missing--
	now := time.Now()
	switch {
	case len(r.came) == 1:
		r.renewed = now
	case now.Sub(r.renewed) > r.waits.rest:
		r.renewed = now
		r.reply(progress)
	}
}

// end ends the subscription. While there is no connection, Drain would leave it to the next one.
func (r *request) end() {
	if r.missing > 0 && r.conn.IsConnected() && r.sub.Drain() == nil {
		// Drain goes on receiving what the server has sent before it knows of the end.
		ctx, cancel := context.WithTimeout(context.Background(), r.waits.rest)
		_ = r.conn.FlushWithContext(ctx)
		cancel()
	}
	_ = r.sub.Unsubscribe()
	for {
		select {
		case raw := <-r.in:
			r.receive(raw)
		default:
			return
		}
	}
}

// reply sends the same reply for each message. None waits for a connection: by then another process may have the
// message.
func (r *request) reply(body []byte) {
	for _, raw := range r.came {
		if r.conn.IsConnected() {
			_ = r.conn.Publish(raw.Reply, body)
		}
	}
}
