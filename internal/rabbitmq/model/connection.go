package model

import (
	"bufio"
	"encoding/binary"
	"io"
	"slices"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// method is the name of a method.
type method string

// number is the class of a method, and its number in it.
type number struct{ class, method uint16 }

var numbers = map[method]number{
	"connection.start": {10, 10}, "connection.start-ok": {10, 11}, "connection.tune": {10, 30},
	"connection.tune-ok": {10, 31}, "connection.open": {10, 40}, "connection.open-ok": {10, 41},
	"connection.close": {10, 50}, "connection.close-ok": {10, 51}, "connection.blocked": {10, 60},
	"connection.unblocked": {10, 61}, "channel.open": {20, 10}, "channel.open-ok": {20, 11},
	"channel.close": {20, 40}, "channel.close-ok": {20, 41},
	"exchange.declare": {40, 10}, "exchange.declare-ok": {40, 11}, "exchange.delete": {40, 20},
	"exchange.delete-ok": {40, 21}, "exchange.bind": {40, 30}, "exchange.bind-ok": {40, 31},
	"exchange.unbind": {40, 40}, "exchange.unbind-ok": {40, 51}, "queue.declare": {50, 10},
	"queue.declare-ok": {50, 11}, "queue.bind": {50, 20}, "queue.bind-ok": {50, 21}, "queue.purge": {50, 30},
	"queue.purge-ok": {50, 31}, "queue.delete": {50, 40}, "queue.delete-ok": {50, 41}, "queue.unbind": {50, 50},
	"queue.unbind-ok": {50, 51}, "basic.qos": {60, 10}, "basic.qos-ok": {60, 11}, "basic.consume": {60, 20},
	"basic.consume-ok": {60, 21}, "basic.cancel": {60, 30}, "basic.cancel-ok": {60, 31}, "basic.publish": {60, 40},
	"basic.return": {60, 50}, "basic.deliver": {60, 60}, "basic.get": {60, 70}, "basic.get-ok": {60, 71},
	"basic.get-empty": {60, 72}, "basic.ack": {60, 80}, "basic.reject": {60, 90}, "basic.nack": {60, 120},
	"confirm.select": {85, 10}, "confirm.select-ok": {85, 11},
}

var methods = func() map[number]method {
	all := map[number]method{}
	for m, n := range numbers {
		all[n] = m
	}
	return all
}()

const classBasic = 60

// connection is the broker's end of a connection. The Broker's mu guards it, but for what serve reads.
type connection struct {
	broker    *Broker
	number    int
	name      string // as the client states it
	end       end
	channels  map[uint16]*channel
	closed    bool
	silent    bool
	closing   bool // whether the broker closes it: only connection.close-ok is handled
	publishes bool
	resume    chan struct{} // not nil: an alarm has stopped it
	beats     *time.Timer
	heard     time.Time
	interval  time.Duration // the interval of heartbeats; 0: none
}

// readSize is how much of what the client writes is read at once.
const readSize = 16 << 10

// serve reads what the client writes, until the connection ends.
func (c *connection) serve() {
	in := bufio.NewReaderSize(c.end, readSize)
	var head [8]byte
	if _, err := io.ReadFull(in, head[:]); err == nil {
		c.broker.locked(c.start)
		for c.serveFrame(in) == nil {
			continue
		}
	}
	c.broker.locked(func() { c.disturb(Cut) })
}

func (c *connection) serveFrame(in io.Reader) error {
	var head [7]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return err
	}
	payload := make([]byte, binary.BigEndian.Uint32(head[3:])+1)
	if _, err := io.ReadFull(in, payload); err != nil {
		return err
	}
	var wait chan struct{}
	c.broker.locked(func() {
		c.heard = time.Now()
		c.handle(head[0], binary.BigEndian.Uint16(head[1:]), payload[:len(payload)-1])
		wait = c.resume
	})
	if wait != nil {
		<-wait
	}
	return nil
}

func (c *connection) handle(kind byte, id uint16, payload []byte) {
	ch := c.channels[id]
	switch {
	case c.closed, kind == frameHeartbeat:
	case kind == frameHeader && ch != nil && ch.publishing != nil:
		ch.size, ch.publishing.Publishing = readHeader(payload)
		ch.publishIfComplete()
	case kind == frameBody && ch != nil && ch.publishing != nil:
		ch.publishing.Body = append(ch.publishing.Body, payload...)
		ch.publishIfComplete()
	case kind == frameMethod:
		r := read(payload)
		m := methods[number{r.short(), r.short()}]
		if m == "basic.publish" { // its end is that of the content
			if ch != nil {
				ch.startPublish(r)
			}
			return
		}
		c.around(m, func(Fault) { c.method(m, id, ch, r) })
	}
}

// around asks for a fault before and after the broker handles a method.
func (c *connection) around(m method, do func(f Fault)) {
	if f := c.fault(m, false); f == None || f == Nack {
		do(f)
		c.fault(m, true)
	}
}

func (c *connection) fault(m method, after bool) Fault {
	ask := c.broker.config.Fault
	if ask == nil || c.closed {
		return None
	}
	f := ask(Event{Connection: c.number, Name: c.name, Method: string(m), After: after})
	if f == None {
		return None
	}
	when := "before"
	if after {
		when = "after"
	}
	c.broker.note("fault %s %s of connection %d", when, m, c.number)
	if f != Nack && f != Unanswered {
		c.disturb(f)
	}
	return f
}

// disturb ends the connection, or silences it.
func (c *connection) disturb(f Fault) {
	b := c.broker
	switch {
	case c.closed || f == None:
	case f == Silent:
		b.note("connection %d: silent", c.number)
		c.silent = true
		c.end.in.setSilent()
		c.end.out.setSilent()
	default:
		b.note("connection %d: ended", c.number)
		c.closed = true
		delete(b.connections, c.number)
		if c.beats != nil {
			c.beats.Stop()
		}
		c.unblock()
		c.closeChannels()
		for _, name := range sorted(b.queues) {
			if q := b.queues[name]; q.owner == c {
				b.remove(q)
			}
		}
		c.end.in.hangUp()
		c.end.out.close(f == Reset)
	}
}

// closeChannels ends all consumers before it gives messages back, so that none of them gets one.
func (c *connection) closeChannels() {
	var open []*channel
	for _, id := range sorted(c.channels) {
		if ch := c.channels[id]; ch.end() {
			open = append(open, ch)
		}
	}
	for _, ch := range open {
		ch.reject(ch.settled(0, true), true, true, false)
	}
}

func (c *connection) frame(kind byte, id uint16, payload []byte) {
	if c.closed {
		return
	}
	var w writer
	w.Grow(len(payload) + 8)
	w.octet(kind).short(id).long(uint32(len(payload))).Write(payload)
	_, _ = c.end.Write(w.octet(frameEnd).Bytes())
}

func (c *connection) send(id uint16, m method, fields func(w *writer)) {
	var w writer
	w.short(numbers[m].class).short(numbers[m].method)
	if fields != nil {
		fields(&w)
	}
	c.frame(frameMethod, id, w.Bytes())
}

func (c *connection) start() {
	capabilities := amqp091.Table{"publisher_confirms": true, "exchange_exchange_bindings": true, "basic.nack": true,
		"consumer_cancel_notify": true, "connection.blocked": true, "consumer_priorities": true,
		"authentication_failure_close": true, "per_consumer_qos": true}
	c.send(0, "connection.start", func(w *writer) {
		w.octet(0).octet(9).table(amqp091.Table{"product": "RabbitMQ", "version": c.broker.config.Rules.Version,
			"platform": "Erlang", "capabilities": capabilities, "cluster_name": "model"})
		w.longText("PLAIN AMQPLAIN").longText("en_US")
	})
}

// fail closes the connection with a reason.
func (c *connection) fail(code uint16, reason string, by method) {
	c.broker.note("connection %d: error %d %s", c.number, code, reason)
	c.closing = true
	c.closeChannels()
	c.send(0, "connection.close", closing(code, reason, by))
}

// closing returns the fields of the close of a channel or a connection. It cuts a long reason off, as RabbitMQ does.
func closing(code uint16, reason string, by method) func(w *writer) {
	if len(reason) > 255 {
		reason = reason[:252] + "..."
	}
	return func(w *writer) { w.short(code).text(reason).short(numbers[by].class).short(numbers[by].method) }
}

func (c *connection) method(m method, id uint16, ch *channel, r reader) {
	switch {
	case m == "connection.start-ok":
		client := r.table()
		c.name, _ = client["connection_name"].(string)
		c.broker.note("connection %d is %q", c.number, c.name)
		c.send(0, "connection.tune", func(w *writer) { w.short(channelMax).long(frameMax).short(heartbeat) })
	case m == "connection.tune-ok":
		r.short()
		r.long()
		c.interval = time.Duration(r.short()) * time.Second
		c.beat()
	case m == "connection.open":
		c.send(0, "connection.open-ok", func(w *writer) { w.text("") })
	case m == "connection.close":
		c.send(0, "connection.close-ok", nil)
		c.disturb(Cut)
	case m == "connection.close-ok":
		c.disturb(Cut)
	case c.closing:
	case m == "channel.open":
		c.channels[id] = &channel{connection: c, id: id, deliveries: map[uint64]delivery{},
			consumers: map[string]*consumer{}}
		c.send(id, "channel.open-ok", func(w *writer) { w.longText("") })
	case ch == nil: // after an error the client has methods on its way
	case m == "channel.close":
		ch.close()
		delete(c.channels, id)
		c.send(id, "channel.close-ok", nil)
	case m == "channel.close-ok":
		delete(c.channels, id)
	case !ch.closed:
		ch.method(m, r)
	}
}

// beat sends heartbeats, and ends the connection of a client that sends nothing.
func (c *connection) beat() {
	if c.interval == 0 || c.closed {
		return
	}
	c.beats = time.AfterFunc(c.interval/2, func() {
		c.broker.locked(func() {
			switch {
			case c.closed:
			case time.Since(c.heard) > 2*c.interval && c.resume == nil:
				c.broker.note("connection %d: missed heartbeats", c.number)
				c.disturb(Cut)
			default:
				c.frame(frameHeartbeat, 0, nil)
				c.beats.Reset(c.interval / 2)
			}
		})
	})
}

// block stops a connection that publishes during an alarm, or lets it go on.
func (c *connection) block() {
	switch {
	case c.broker.blocked && c.publishes && c.resume == nil:
		c.resume = make(chan struct{})
		c.send(0, "connection.blocked", func(w *writer) { w.text("low on memory") })
	case !c.broker.blocked && c.resume != nil:
		c.unblock()
		c.send(0, "connection.unblocked", nil)
	}
}

func (c *connection) unblock() {
	if c.resume != nil {
		close(c.resume)
		c.resume = nil
		if least := time.Now().Add(-3 * c.interval / 2); c.heard.Before(least) {
			c.heard = least // what the client has sent was not read
		}
	}
}

// unacknowledged returns the deliveries of a queue, in their order.
func (c *connection) unacknowledged(q *queue) (all []delivery) {
	for _, ch := range c.channels {
		for _, d := range ch.deliveries {
			if d.queue == q {
				all = append(all, d)
			}
		}
	}
	slices.SortFunc(all, func(a, b delivery) int { return int(a.message.arrival) - int(b.message.arrival) })
	return all
}
