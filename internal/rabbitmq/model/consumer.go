package model

import (
	"maps"
	"slices"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// consumer is a consumer of a queue.
type consumer struct {
	channel   *channel
	queue     *queue
	tag       string
	automatic bool // nothing is acknowledged
	exclusive bool
	prefetch  int // 0: no limit
	priority  int64
	open      int  // messages that are not settled
	full      bool // it waits outside of the turns of its queue
}

// delivery is a message that a consumer has, or a basic.get.
type delivery struct {
	message *message
	queue   *queue
	to      *consumer // nil: a basic.get
	at      time.Time
}

func (c *consumer) takes() bool {
	limit := c.channel.limit
	return c.automatic || (c.prefetch == 0 || c.open < c.prefetch) && (limit == 0 || len(c.channel.deliveries) < limit)
}

// remove ends a consumer without a word to its client.
func (c *consumer) remove() {
	q := c.queue
	same := func(other *consumer) bool { return other == c }
	q.consumers, q.turns = slices.DeleteFunc(q.consumers, same), slices.DeleteFunc(q.turns, same)
	delete(c.channel.consumers, c.tag)
	if q.autoDelete && len(q.consumers) == 0 && !q.gone {
		q.broker.remove(q)
	}
}

// cancel ends a consumer, and tells its client.
func (c *consumer) cancel() {
	c.remove()
	c.channel.send("basic.cancel", func(w *writer) { w.text(c.tag).octet(1) })
}

// next returns the consumer that gets the next message, nil if none can take it: the highest priority first, and in
// turns among equals. Of a queue with a single active consumer it is the first one only.
func (q *queue) next() *consumer {
	if q.single() {
		if len(q.consumers) == 0 || !q.consumers[0].takes() {
			return nil
		}
		return q.consumers[0]
	}
	for len(q.turns) > 0 {
		c := q.turns[0]
		q.turns = q.turns[1:]
		if c.takes() {
			q.enterTurns(c)
			return c
		}
		c.full = true
	}
	return nil
}

// enterTurns puts a consumer behind those that have its priority.
func (q *queue) enterTurns(c *consumer) {
	at := slices.IndexFunc(q.turns, func(other *consumer) bool { return other.priority < c.priority })
	if at < 0 {
		at = len(q.turns)
	}
	q.turns, c.full = slices.Insert(q.turns, at, c), false
}

// users returns how many consumers a queue counts. A quorum queue counts those that have messages, too: cancelled ones,
// and each basic.get. Of those that wait until they are the active one it counts none.
func (q *queue) users() (gets int) {
	if !q.quorum() {
		return len(q.consumers)
	}
	count := map[*consumer]bool{}
	for i, c := range q.consumers {
		if i == 0 || !q.single() {
			count[c] = true
		}
	}
	for _, c := range q.broker.connections {
		for _, d := range c.unacknowledged(q) {
			if count[d.to] = true; d.to == nil {
				gets++
			}
		}
	}
	delete(count, nil)
	return gets + len(count)
}

// deliver gives messages to consumers while some take them.
func (q *queue) deliver() {
	for _, c := range q.consumers {
		if c.full && c.takes() {
			q.enterTurns(c)
		}
	}
	for q.expire(); len(q.ready) > 0; q.expire() {
		to := q.next()
		if to == nil {
			return
		}
		m := q.take()
		q.broker.note("%s delivers %s to connection %d", q.name, m.Body, to.channel.connection.number)
		ch := to.channel
		tag := ch.hand(delivery{m, q, to, time.Now()}, to.automatic)
		ch.send("basic.deliver", func(w *writer) {
			w.text(to.tag).number(8, tag).bit(m.redelivered).text(m.exchange).text(m.key)
		})
		ch.content(q, m, false)
		if q.quorum() && !to.takes() {
			q.turns, to.full = slices.DeleteFunc(q.turns, func(c *consumer) bool { return c == to }), true
		}
	}
}

// hand notes a delivery and returns its tag.
func (ch *channel) hand(d delivery, automatic bool) uint64 {
	ch.tags++
	if automatic {
		return ch.tags
	}
	ch.deliveries[ch.tags] = d
	if d.to != nil {
		d.to.open++
	}
	if ch.timeout == nil {
		ch.watch(ch.connection.broker.config.ConsumerTimeout)
	}
	return ch.tags
}

// content sends header and body of a message of a queue.
func (ch *channel) content(q *queue, m *message, got bool) {
	p := m.Publishing
	if q != nil && q.quorum() {
		p.Headers = amqp091.Table{}
		maps.Copy(p.Headers, m.Headers)
		if m.returned > 0 || got && q.broker.does(countAtGet) {
			p.Headers["x-delivery-count"] = m.returned
		}
		if m.acquired > 0 && q.broker.does(acquiredCount) {
			p.Headers["x-acquired-count"] = m.acquired
		}
		if len(p.Headers) == 0 {
			p.Headers = m.Headers
		}
	}
	ch.connection.frame(frameHeader, ch.id, writeHeader(p))
	for body := m.Body; len(body) > 0; {
		part := body[:min(len(body), frameMax-8)]
		ch.connection.frame(frameBody, ch.id, part)
		body = body[len(part):]
	}
}

// settled removes deliveries from the channel and returns them in the order of their tags. All with multiple and tag 0.
func (ch *channel) settled(tag uint64, multiple bool) (done []delivery) {
	return ch.settledWhere(func(each uint64, _ delivery) bool {
		return each == tag || multiple && (each < tag || tag == 0)
	})
}

func (ch *channel) settledWhere(is func(tag uint64, d delivery) bool) (done []delivery) {
	for _, tag := range sorted(ch.deliveries) {
		d := ch.deliveries[tag]
		if !is(tag, d) {
			continue
		}
		delete(ch.deliveries, tag)
		if d.to != nil {
			d.to.open--
		}
		done = append(done, d)
	}
	return done
}

// moveOn lets the queues of deliveries and the consumers of the channel go on.
func (ch *channel) moveOn(done []delivery) {
	queues := map[string]*queue{}
	for _, d := range done {
		queues[d.queue.name] = d.queue
	}
	for _, c := range ch.consumers {
		queues[c.queue.name] = c.queue
	}
	for _, name := range sorted(queues) {
		queues[name].moveOn()
	}
}

// reject dead-letters deliveries, or gives them back to their queues.
func (ch *channel) reject(done []delivery, requeue, counted, byClient bool) {
	byQueue := map[string][]delivery{}
	for _, d := range done {
		if requeue {
			ch.connection.broker.note("connection %d gives %s back to %s", ch.connection.number, d.message.Body, d.queue.name)
			byQueue[d.queue.name] = append(byQueue[d.queue.name], d)
		} else if !d.queue.gone {
			d.queue.deadLetter(d.message, "rejected")
		}
	}
	for _, name := range sorted(byQueue) {
		byQueue[name][0].queue.giveBack(byQueue[name], counted, byClient)
	}
	ch.moveOn(done)
}

// watch looks for deliveries that are too old after a while.
func (ch *channel) watch(after time.Duration) {
	b := ch.connection.broker
	ch.timeout = time.AfterFunc(after, func() {
		b.locked(func() {
			ch.timeout = nil
			if !ch.closed {
				ch.expire()
			}
		})
	})
}

func (ch *channel) expire() {
	b := ch.connection.broker
	var oldest delivery
	for _, d := range ch.deliveries {
		if oldest.at.IsZero() || d.at.Before(oldest.at) {
			oldest = d
		}
	}
	left := b.config.ConsumerTimeout - time.Since(oldest.at)
	switch {
	case oldest.at.IsZero():
	case left > 0:
		ch.watch(left)
	case b.does(timeoutCancels) && oldest.queue.quorum() && oldest.to != nil:
		b.note("consumer timeout: connection %d, %s", ch.connection.number, oldest.queue.name)
		oldest.to.cancel()
		all := ch.settledWhere(func(_ uint64, d delivery) bool { return d.to == oldest.to })
		ch.reject(all, true, true, false)
		ch.watch(b.config.ConsumerTimeout)
	default:
		b.note("consumer timeout: connection %d, %s", ch.connection.number, oldest.queue.name)
		ch.fail(amqp091.PreconditionFailed, "delivery acknowledgement on channel timed out", "")
	}
}
