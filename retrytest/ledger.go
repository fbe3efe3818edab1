package retrytest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/middleware"
	"github.com/tieredretry/watermill-retry/relay"
)

// mostNacks is how often a message may come straight back before Send gives up on it: no time passes in between.
const mostNacks = 100

// ledger knows every message of the app, and what has become of it so far.
type ledger struct {
	mu       sync.Mutex
	queues   []*queue
	handlers map[string]*queue // by name: the queue a handler was seen on
	returns  map[string]string // return topics of the handlers that the relay has added, and their names
	current  map[lifeKey]*life
	letters  []*letter
	sent     map[string][]*message.Message // by topic
	running  map[*visit]bool
	changed  chan struct{} // closed when anything happens
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
	open   int // copies that are not settled
	first  time.Time
	latest time.Time // when anything happened, or is due to
	due    time.Time // of the retry it waits for
	nacks  int       // in a row
	stuck  string    // why nothing more is expected of it
	visits []*visit
	dead   *message.Message
}

type lifeKey struct {
	queue *queue
	uuid  string
}

// visit is one delivery of a message to a handler.
type visit struct {
	Attempt
	life              *life
	started           time.Time
	failed            time.Time
	seen              int // failures in the record that the handler got
	returned, settled bool
	acked             bool
}

func newLedger() *ledger {
	return &ledger{
		handlers: map[string]*queue{}, returns: map[string]string{}, current: map[lifeKey]*life{},
		sent: map[string][]*message.Message{}, running: map[*visit]bool{}, changed: make(chan struct{}),
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
		return tierTopic(p.Tier), nil
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
			twin.open++
			fresh = twin.letter
			continue
		}
		born := &life{letter: fresh, queue: q, open: 1, latest: time.Now()}
		l.current[key] = born
		fresh.lives = append(fresh.lives, born)
	}
	if len(fresh.lives) > 0 && !slices.Contains(l.letters, fresh) {
		l.letters = append(l.letters, fresh)
	}
	l.change()
	return fresh
}

// queueOfHandler is where a handler's messages first come from: for one that the relay has added, not its return topic.
func (l *ledger) queueOfHandler(name string, q *queue) (string, *queue) {
	if base := l.returns[q.topic]; base != "" {
		return base, l.handlers[base]
	}
	l.handlers[name] = q
	return name, q
}

// begin notes that a handler gets a message, if it is known from the App's Pub/Sub. No visit comes of a message that was given up.
func (l *ledger) begin(msg *message.Message) (v *visit, known bool) {
	q := queueOf(msg)
	if q == nil {
		return nil, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	handler, q := l.queueOfHandler(message.HandlerNameFromCtx(msg.Context()), q)
	in := l.current[lifeKey{q, msg.UUID}]
	if in == nil {
		return nil, false
	}
	if in.countNacks(); in.nacks >= mostNacks {
		in.stuck = fmt.Sprintf("handler %q has given message %q back %d times in a row, and it comes straight back: its errors have to "+
			"reach App.Retry.Middleware, and nothing above that may return one", handler, msg.UUID, in.nacks)
		l.change()
		return nil, true
	}
	now := time.Now()
	v = &visit{life: in, started: now}
	v.Handler = handler
	if record, ok := middleware.ReadRecord(msg.Metadata); ok && record.Topic == q.topic {
		v.Record, v.seen = record, record.Failures
	}
	if len(in.visits) == 0 {
		in.first = now
	}
	v.At = now.Sub(in.first)
	in.visits, in.latest, in.due = append(in.visits, v), now, time.Time{}
	l.running[v] = true
	l.change()
	return v, true
}

// countNacks is called for every delivery, before it is one of the visits.
func (in *life) countNacks() {
	if len(in.visits) == 0 {
		return
	}
	last := in.visits[len(in.visits)-1]
	if last.returned && last.Outcome == "" && in.open == 1 {
		last.Outcome = GivenBack // its nack is still to be heard of
	}
	if last.returned && (last.Outcome == "" || last.Outcome == GivenBack) {
		in.nacks++
	} else {
		in.nacks = 0
	}
}

// end notes that the handler, with its middlewares, has returned.
func (l *ledger) end(v *visit, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v.returned, v.Took = true, time.Since(v.started)
	if v.Err == nil {
		v.Err = err
	}
	delete(l.running, v)
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

// conclude is called with the lock held.
func (l *ledger) conclude(v *visit) {
	if !v.returned || !v.settled {
		return
	}
	in := v.life
	in.latest = time.Now()
	switch {
	case !v.acked:
		v.Outcome = GivenBack
	case v.Outcome == Retried || v.Outcome == Parked:
	case v.Outcome == DeadLettered:
		in.open--
	case v.Err == nil:
		v.Outcome = Processed
		in.open--
	default:
		v.Outcome = Dropped
		in.open--
	}
}

// hook adds the ledger to the middleware's hooks, before the app's own.
func (l *ledger) hook(config *middleware.TieredRetryConfig) {
	onRetry, onPark, onDeadLetter := config.OnRetry, config.OnPark, config.OnDeadLetter
	config.OnRetry = func(e middleware.RetryEvent) {
		l.failed(e.Handler, e.MessageUUID, e.Failures-1, e.DueAt, func(v *visit) {
			v.Outcome, v.Failures, v.Delay, v.Tier, v.Err = Retried, e.Failures, e.Delay, e.Tier, e.Err
			v.failed = e.DueAt.Add(-e.Delay)
		})
		if onRetry != nil {
			onRetry(e)
		}
	}
	config.OnPark = func(e middleware.ParkEvent) {
		l.failed(e.Handler, e.MessageUUID, e.Failures, e.DueAt, func(v *visit) {
			v.Outcome, v.Failures, v.Delay, v.Tier = Parked, e.Failures, time.Until(e.DueAt), e.Tier
		})
		if onPark != nil {
			onPark(e)
		}
	}
	config.OnDeadLetter = func(e middleware.DeadLetterEvent) {
		l.failed(e.Handler, e.MessageUUID, e.Failures-1, time.Time{}, func(v *visit) {
			v.Outcome, v.Failures, v.DeadReason, v.Err = DeadLettered, e.Failures, e.Reason, e.Err
		})
		if onDeadLetter != nil {
			onDeadLetter(e)
		}
	}
}

// failed finds the visit that an event tells of: on a short tier the next one may have begun before the hook runs.
func (l *ledger) failed(handler, uuid string, seen int, due time.Time, note func(*visit)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	in := l.current[lifeKey{l.handlers[handler], uuid}]
	if in == nil {
		return
	}
	for _, v := range slices.Backward(in.visits) {
		if v.seen == seen && v.Outcome == "" {
			note(v)
			if v == in.visits[len(in.visits)-1] {
				in.due = due
			}
			break
		}
	}
	l.change()
}

// buried keeps a dead letter.
func (l *ledger) buried(msg *message.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if in := l.current[lifeKey{l.handlers[msg.Metadata[middleware.HandlerKey]], msg.UUID}]; in != nil {
		in.dead = msg.Copy()
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
	if last := in.visits[len(in.visits)-1]; !last.returned {
		return fmt.Sprintf("handler %q has not returned", last.Handler)
	}
	return "it did not come back"
}

// rest waits until no handler runs; when the time is over it returns the name of one.
func (l *ledger) rest(most time.Duration) string {
	deadline := time.Now().Add(most)
	for {
		l.mu.Lock()
		busy, changed := "", l.changed
		for v := range l.running {
			busy = v.Handler
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
		if v.Outcome == Retried && next.seen == v.Failures {
			return next.started.Sub(v.failed)
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
