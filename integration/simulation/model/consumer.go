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
	open      int // messages that are not settled
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
	q.consumers = slices.DeleteFunc(q.consumers, func(other *consumer) bool { return other == c })
	delete(c.channel.consumers, c.tag)
	if q.autoDelete && len(q.consumers) == 0 && !q.gone {
		q.broker.remove(q)
	}
}

// cancel ends a consumer, and tells its client.
func (c *consumer) cancel() {
	c.remove()
	c.channel.send(basicCancel, func(w *writer) { w.text(c.tag).octet(1) })
}

// next returns the consumer that gets the next message, nil if none can take it: the highest priority first, and in
// turns among equals. Of a queue with a single active consumer it is the first one only.
func (q *queue) next() *consumer {
	if q.arguments["x-single-active-consumer"] == true {
		if len(q.consumers) == 0 || !q.consumers[0].takes() {
			return nil
		}
		return q.consumers[0]
	}
	var best *consumer
	var at int
	for i := range q.consumers {
		n := (q.last + 1 + i) % len(q.consumers)
		if c := q.consumers[n]; c.takes() && (best == nil || c.priority > best.priority) {
			best, at = c, n
		}
	}
	if best != nil {
		q.last = at
	}
	return best
}

// deliver gives messages to consumers while some take them.
func (q *queue) deliver() {
	for len(q.ready) > 0 {
		to := q.next()
		if to == nil {
			return
		}
		m := q.take()
		q.broker.note("%s delivers %s to connection %d", q.name, m.body, to.channel.connection.number)
		ch := to.channel
		tag := ch.hand(delivery{m, q, to, time.Now()}, to.automatic)
		ch.send(basicDeliver, func(w *writer) {
			w.text(to.tag).number(8, tag).bit(m.redelivered).text(m.exchange).text(m.key)
		})
		ch.content(q, m)
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
func (ch *channel) content(q *queue, m *message) {
	p := m.properties
	if q != nil && q.quorum() && m.acquired > 0 {
		p.headers = amqp091.Table{}
		maps.Copy(p.headers, m.headers)
		p.headers["x-delivery-count"] = m.returned
		if q.broker.config.Rules.AcquiredCount {
			p.headers["x-acquired-count"] = m.acquired
		}
		p.has |= hasHeaders
	}
	ch.connection.frame(frameHeader, ch.id, p.header(len(m.body)))
	for body := m.body; len(body) > 0; {
		part := body[:min(len(body), frameMax-8)]
		ch.connection.frame(frameBody, ch.id, part)
		body = body[len(part):]
	}
}

// settled removes deliveries from the channel and returns them in the order of their tags. All with multiple and tag 0.
func (ch *channel) settled(tag uint64, multiple bool) (done []delivery) {
	var tags []uint64
	for each := range ch.deliveries {
		if each == tag || multiple && (each < tag || tag == 0) {
			tags = append(tags, each)
		}
	}
	slices.Sort(tags)
	for _, each := range tags {
		d := ch.deliveries[each]
		delete(ch.deliveries, each)
		if d.to != nil {
			d.to.open--
		}
		done = append(done, d)
	}
	return done
}

// acknowledge ends deliveries.
func (ch *channel) acknowledge(done []delivery) {
	for _, d := range done {
		ch.connection.broker.note("connection %d acks %s of %s", ch.connection.number, d.message.body, d.queue.name)
	}
	ch.moveOn(done)
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
	for _, name := range sortedKeys(queues) {
		queues[name].moveOn()
	}
}

// reject dead-letters deliveries, or gives them back to their queues.
func (ch *channel) reject(done []delivery, requeue, counted bool) {
	byQueue := map[string][]*message{}
	queues := map[string]*queue{}
	for _, d := range done {
		if requeue {
			ch.connection.broker.note("connection %d gives %s back to %s", ch.connection.number, d.message.body, d.queue.name)
			byQueue[d.queue.name] = append(byQueue[d.queue.name], d.message)
			queues[d.queue.name] = d.queue
		} else if !d.queue.gone {
			d.queue.deadLetter(d.message, "rejected")
		}
	}
	for _, name := range sortedKeys(queues) {
		queues[name].giveBack(byQueue[name], counted)
	}
	ch.moveOn(done)
}

// watch looks for deliveries that are too old after a while.
func (ch *channel) watch(after time.Duration) {
	b := ch.connection.broker
	ch.timeout = time.AfterFunc(after, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		ch.timeout = nil
		if !ch.closed {
			ch.expire()
		}
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
	case b.config.Rules.TimeoutCancels && oldest.queue.quorum() && oldest.to != nil:
		b.note("consumer timeout: connection %d, %s", ch.connection.number, oldest.queue.name)
		oldest.to.cancel()
		var back []uint64
		for tag, d := range ch.deliveries {
			if d.to == oldest.to {
				back = append(back, tag)
			}
		}
		slices.Sort(back)
		var all []delivery
		for _, tag := range back {
			all = append(all, ch.settled(tag, false)...)
		}
		ch.reject(all, true, true)
		ch.watch(b.config.ConsumerTimeout)
	default:
		b.note("consumer timeout: connection %d, %s", ch.connection.number, oldest.queue.name)
		ch.fail(amqp091.PreconditionFailed, "delivery acknowledgement on channel timed out", 0)
	}
}
