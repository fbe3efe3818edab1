package retrytest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/relay"
)

// mostNacks is how often a message may come straight back before Send gives up on it: no time passes while it does.
const mostNacks = 100

// ledger knows every message of the app, and what has become of it so far.
type ledger struct {
	mu       sync.Mutex
	queues   []*queue
	tiers    map[string]backoff.Tier // by topic
	handlers map[string]*queue       // by name: the queue a handler was seen on
	returns  map[string]string       // return topics of the handlers that the relay has added, and their names
	current  map[lifeKey]*life
	letters  []*letter
	sent     map[string][]*message.Message // by topic
	open     map[*visit]bool               // not settled
	changed  chan struct{}                 // closed when anything happens
}

// letter is a message that was published to a topic with handlers.
type letter struct {
	topic string
	msg   *message.Message
	lives []*life
}

// life is what becomes of a letter in one consumer group.
type life struct {
	letter *letter
	queue  *queue
	sent   int // copies
	open   int // copies that are not settled
	failed int // failures that were published
	first  time.Time
	latest time.Time // when anything happened
	due    time.Time // when the retry is that it waits for
	stuck  string    // why nothing more is expected of it
	visits []*visit
	dead   *message.Message
}

type lifeKey struct {
	queue *queue
	uuid  string
}

// visit is one delivery of a message.
type visit struct {
	Attempt
	life             *life
	delivered        time.Time
	failed           time.Time
	seen             int  // failures in the record that it came with
	called, returned bool // the handler
	settled, acked   bool // the message
	unwound          bool // nobody may settle it any more
}

func newLedger() *ledger {
	return &ledger{
		tiers: map[string]backoff.Tier{}, handlers: map[string]*queue{}, returns: map[string]string{}, current: map[lifeKey]*life{},
		sent: map[string][]*message.Message{}, open: map[*visit]bool{}, changed: make(chan struct{}),
	}
}

// change is called with the lock held.
func (l *ledger) change() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// relayTopic names the relay's topics. A handler that the relay did not add gets its retries on the queue it failed on.
func (l *ledger) relayTopic(p relay.TopicParams) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch p.Kind {
	case relay.TierTopic:
		topic := tierTopic(p.Tier)
		l.tiers[topic] = p.Tier
		return topic, nil
	case relay.DeadLetterTopic:
		return deadTopic(p.Handler), nil
	}
	topic := returnTopic(p.Handler)
	if q := l.handlers[p.Handler]; q != nil && l.returns[topic] == "" {
		return q.returnTopic, nil
	}
	l.returns[topic] = p.Handler
	return topic, nil
}

func (l *ledger) isReturnTopic(topic string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.returns[topic] != ""
}

func (l *ledger) subscribed(q *queue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queues = append(l.queues, q)
}

func (l *ledger) topics() map[string]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	topics := map[string]bool{}
	for _, q := range l.queues {
		if l.returns[q.topic] == "" {
			topics[q.topic] = true
		}
	}
	return topics
}

func (l *ledger) produced(topic string, messages []*message.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, msg := range messages {
		l.sent[topic] = append(l.sent[topic], msg.Copy())
	}
}

func (l *ledger) producedTo(topic string) []*message.Message {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.sent[topic])
}

// published opens a life for the message in every group, before it can be delivered.
func (l *ledger) published(topic string, msg *message.Message) *letter {
	l.mu.Lock()
	defer l.mu.Unlock()
	fresh := &letter{topic: topic, msg: msg.Copy()}
	for _, q := range l.queues {
		if q.topic != topic {
			continue
		}
		key := lifeKey{q, msg.UUID}
		if twin := l.current[key]; twin != nil && twin.open > 0 { // the same message, twice at once
			twin.open, twin.sent = twin.open+1, twin.sent+1
			fresh = twin.letter
			continue
		}
		born := &life{letter: fresh, queue: q, open: 1, sent: 1, latest: time.Now()}
		l.current[key] = born
		fresh.lives = append(fresh.lives, born)
	}
	if len(fresh.lives) > 0 && !slices.Contains(l.letters, fresh) {
		l.letters = append(l.letters, fresh)
	}
	l.change()
	return fresh
}

// begin notes a delivery, if its message is known. No visit comes of a message that was given up.
func (l *ledger) begin(q *queue, msg *message.Message) (v *visit, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if handler := l.returns[q.topic]; handler != "" {
		q = l.handlers[handler]
	}
	in := l.current[lifeKey{q, msg.UUID}]
	if in == nil {
		return nil, false
	}
	if again := len(in.visits) - in.failed - in.sent + 1; again >= mostNacks {
		in.stuck = fmt.Sprintf("message %q was given back %d times, and comes straight back: the handler's errors have to reach "+
			"App.Retry.Middleware, and no middleware above that may fail", msg.UUID, again)
		l.change()
		return nil, true
	}
	now := time.Now()
	v = &visit{life: in, delivered: now}
	if record, ok := middleware.ReadRecord(msg.Metadata); ok && record.Topic == q.topic {
		v.Record, v.seen = record, record.Failures
	}
	if len(in.visits) == 0 {
		in.first = now
	}
	v.At = now.Sub(in.first)
	in.visits, in.latest, in.due = append(in.visits, v), now, time.Time{}
	l.open[v] = true
	l.change()
	return v, true
}

// discard takes back a visit whose message reached nobody.
func (l *ledger) discard(v *visit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, v)
	l.change()
}

// call notes that a handler, or a middleware of it, is called.
func (l *ledger) call(v *visit, handler string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v.called, v.Handler = true, handler
	for topic, base := range l.returns {
		if handler == relayedName(base) && l.handlers[base] == v.life.queue {
			v.Handler = l.returns[topic]
			return
		}
	}
	l.handlers[handler] = v.life.queue
}

// end notes that it has returned.
func (l *ledger) end(v *visit, err error, unwound bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v.returned, v.unwound, v.Took = true, unwound, time.Since(v.delivered)
	if v.Err == nil {
		v.Err = err
	}
	l.conclude(v)
	l.change()
}

// settle notes that the message was acknowledged or not.
func (l *ledger) settle(v *visit, acked bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v.settled, v.acked = true, acked
	l.conclude(v)
	l.change()
}

// conclude is called with the lock held. A handler may go on after it has settled its message itself.
func (l *ledger) conclude(v *visit) {
	if !v.settled || v.called && !v.returned {
		return
	}
	delete(l.open, v)
	in := v.life
	in.latest = time.Now()
	switch {
	case !v.acked:
		v.Outcome = middleware.GivenBack
		return
	case v.Outcome == middleware.Retried || v.Outcome == middleware.Parked:
		return
	case v.Outcome == middleware.DeadLettered:
	case v.Err == nil:
		v.Outcome = middleware.Processed
	default:
		v.Outcome = middleware.Settled
	}
	in.open--
}

// failed notes what the middleware has published for a message, before it is acknowledged.
func (l *ledger) failed(v *visit, topic string, letter *message.Message) {
	record, ok := middleware.ReadRecord(letter.Metadata)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	in := v.life
	in.failed++
	l.handlers[record.Handler] = in.queue
	if record.Failures > v.seen {
		v.Failures, v.failed = record.Failures, record.LastFailedAt
	}
	switch {
	case record.DeadReason != "":
		v.Outcome, v.DeadReason, in.dead = middleware.DeadLettered, record.DeadReason, letter.Copy()
	case record.Failures == v.seen:
		v.Outcome, v.Tier, v.Delay, in.due = middleware.Parked, l.tiers[topic], time.Until(record.DueAt), record.DueAt
	default:
		v.Outcome, v.Tier, v.Delay, in.due = middleware.Retried, l.tiers[topic], record.DueAt.Sub(record.LastFailedAt), record.DueAt
	}
	if v.Err == nil && v.Outcome != middleware.Parked {
		v.Err = recordedError(record.Reason)
	}
	l.change()
}

// recordedError is what is known of a failure where the app has set hooks of its own.
type recordedError string

func (e recordedError) Error() string { return string(e) }

// hook adds the ledger to the middleware's hooks, before the app's own: they have the error itself.
func (l *ledger) hook(config *middleware.TieredRetryConfig) {
	onRetry, onDeadLetter := config.OnRetry, config.OnDeadLetter
	config.OnRetry = func(e middleware.RetryEvent) {
		l.because(e.Handler, e.MessageUUID, e.Failures, e.Err)
		if onRetry != nil {
			onRetry(e)
		}
	}
	config.OnDeadLetter = func(e middleware.DeadLetterEvent) {
		l.because(e.Handler, e.MessageUUID, e.Failures, e.Err)
		if onDeadLetter != nil {
			onDeadLetter(e)
		}
	}
}

func (l *ledger) because(handler, uuid string, failures int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	in := l.current[lifeKey{l.handlers[handler], uuid}]
	if in == nil {
		return
	}
	for _, v := range slices.Backward(in.visits) {
		if _, known := v.Err.(recordedError); v.Failures == failures && known {
			v.Err = err
			return
		}
	}
}

// wait returns when no message is on its way, or with the trouble that one is in: it comes straight back again and again, or
// nothing happens to it.
func (l *ledger) wait(patience time.Duration) (trouble string, stuck *letter) {
	for {
		l.mu.Lock()
		soonest, until := l.pending(patience)
		changed := l.changed
		switch {
		case soonest == nil:
		case soonest.stuck != "":
			trouble, stuck = soonest.stuck, soonest.letter
		case !time.Now().Before(until):
			trouble = fmt.Sprintf("nothing has happened to message %q for %s: %s", soonest.letter.msg.UUID, brief(patience), soonest.whereabouts())
			stuck = soonest.letter
		}
		l.mu.Unlock()
		if soonest == nil || stuck != nil {
			return trouble, stuck
		}
		sleep(changed, time.Until(until))
	}
}

// pending is the life of which something has to be heard soonest, and until when; nil when nothing is on its way.
func (l *ledger) pending(patience time.Duration) (soonest *life, until time.Time) {
	for _, sent := range l.letters {
		for _, in := range sent.lives {
			if in.stuck != "" {
				return in, until
			}
			deadline := in.latest
			if in.due.After(deadline) {
				deadline = in.due
			}
			deadline = deadline.Add(patience)
			if in.open > 0 && (soonest == nil || deadline.Before(until)) {
				soonest, until = in, deadline
			}
		}
	}
	return soonest, until
}

func (in *life) whereabouts() string {
	if len(in.visits) == 0 {
		return "it did not reach its handler"
	}
	switch last := in.visits[len(in.visits)-1]; {
	case last.settled && (!last.called || last.returned):
		return "it did not come back"
	case last.called && !last.returned:
		return fmt.Sprintf("handler %q has not returned", last.Handler)
	}
	return "it was delivered, and neither acknowledged nor given back"
}

// rest waits until no handler runs and every message is settled; when the time is over it returns the name of a handler.
func (l *ledger) rest(most time.Duration) string {
	deadline := time.Now().Add(most)
	for {
		l.mu.Lock()
		busy, changed := "", l.changed
		for v := range l.open {
			if !v.unwound {
				busy = cmp.Or(v.Handler, v.life.queue.topic)
			}
		}
		l.mu.Unlock()
		if busy == "" || !sleep(changed, time.Until(deadline)) {
			return busy
		}
	}
}

func (l *ledger) stories(a *App, topic string) (all []*Story) {
	l.mu.Lock()
	letters := slices.Clone(l.letters)
	l.mu.Unlock()
	for _, sent := range letters {
		if sent.topic == topic {
			all = append(all, l.story(a, sent))
		}
	}
	return all
}

func (l *ledger) story(a *App, of *letter) *Story {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &Story{Topic: of.topic, Message: of.msg, app: a}
	for _, in := range of.lives {
		c := chapter{deadLetter: in.dead}
		for name, q := range l.handlers {
			if q == in.queue {
				c.handlers = append(c.handlers, name)
			}
		}
		slices.Sort(c.handlers)
		for i, v := range in.visits {
			attempt := v.Attempt
			attempt.Waited = v.waited(in.visits[i+1:])
			if v.Outcome == "" && v.life.sent == 1 && i < len(in.visits)-1 {
				attempt.Outcome = middleware.GivenBack // it has come back: the nack is still to be heard of
			}
			c.attempts = append(c.attempts, attempt)
		}
		s.chapters = append(s.chapters, c)
	}
	return s
}

// sleep tells whether something has changed within the time.
func sleep(changed <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-changed:
		return true
	case <-timer.C:
		return false
	}
}

// waited is how long it took until the retry of this visit, which is one of those that came later.
func (v *visit) waited(later []*visit) time.Duration {
	for _, next := range later {
		if v.Outcome == middleware.Retried && next.seen == v.Failures {
			return next.delivered.Sub(v.failed)
		}
	}
	return 0
}

func list(words map[string]bool) string {
	var all []string
	for word := range words {
		all = append(all, fmt.Sprintf("%q", word))
	}
	if len(all) == 0 {
		return "none"
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
