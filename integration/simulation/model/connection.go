package model

import (
	"bufio"
	"encoding/binary"
	"io"
	"slices"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// A method is its class and its number in it.
type method uint32

func of(class, number uint16) method { return method(uint32(class)<<16 | uint32(number)) }

func (m method) class() uint16  { return uint16(m >> 16) }
func (m method) number() uint16 { return uint16(m) }

const classBasic = 60

const (
	connectionStart   = method(10<<16 | 10)
	connectionStartOk = method(10<<16 | 11)
	connectionTune    = method(10<<16 | 30)
	connectionTuneOk  = method(10<<16 | 31)
	connectionOpen    = method(10<<16 | 40)
	connectionOpenOk  = method(10<<16 | 41)
	connectionClose   = method(10<<16 | 50)
	connectionCloseOk = method(10<<16 | 51)
	connectionBlocked = method(10<<16 | 60)
	connectionFree    = method(10<<16 | 61)
	channelOpen       = method(20<<16 | 10)
	channelOpenOk     = method(20<<16 | 11)
	channelFlowOk     = method(20<<16 | 21)
	channelClose      = method(20<<16 | 40)
	channelCloseOk    = method(20<<16 | 41)
	exchangeDeclare   = method(40<<16 | 10)
	exchangeDelete    = method(40<<16 | 20)
	exchangeBind      = method(40<<16 | 30)
	exchangeUnbind    = method(40<<16 | 40)
	queueDeclare      = method(50<<16 | 10)
	queueBind         = method(50<<16 | 20)
	queuePurge        = method(50<<16 | 30)
	queueDelete       = method(50<<16 | 40)
	queueUnbind       = method(50<<16 | 50)
	basicQos          = method(60<<16 | 10)
	basicConsume      = method(60<<16 | 20)
	basicCancel       = method(60<<16 | 30)
	basicCancelOk     = method(60<<16 | 31)
	basicPublish      = method(60<<16 | 40)
	basicReturn       = method(60<<16 | 50)
	basicDeliver      = method(60<<16 | 60)
	basicGet          = method(60<<16 | 70)
	basicGetOk        = method(60<<16 | 71)
	basicGetEmpty     = method(60<<16 | 72)
	basicAck          = method(60<<16 | 80)
	basicReject       = method(60<<16 | 90)
	basicNack         = method(60<<16 | 120)
	confirmSelect     = method(85<<16 | 10)
)

var names = map[method]string{
	connectionStartOk: "connection.start-ok", connectionTuneOk: "connection.tune-ok", connectionOpen: "connection.open",
	connectionClose: "connection.close", connectionCloseOk: "connection.close-ok", channelOpen: "channel.open",
	channelFlowOk: "channel.flow-ok", channelClose: "channel.close", channelCloseOk: "channel.close-ok",
	exchangeDeclare: "exchange.declare", exchangeDelete: "exchange.delete", exchangeBind: "exchange.bind",
	exchangeUnbind: "exchange.unbind", queueDeclare: "queue.declare", queueBind: "queue.bind", queuePurge: "queue.purge",
	queueDelete: "queue.delete", queueUnbind: "queue.unbind", basicQos: "basic.qos", basicConsume: "basic.consume",
	basicCancel: "basic.cancel", basicPublish: "basic.publish", basicGet: "basic.get", basicAck: "basic.ack",
	basicReject: "basic.reject", basicNack: "basic.nack", confirmSelect: "confirm.select",
}

// connection is the broker's end of a connection. The Broker's mu guards it, but for what serve reads.
type connection struct {
	broker    *Broker
	number    int
	name      string // as the client states it
	end       end
	channels  map[uint16]*channel
	closed    bool
	closing   bool // by the broker: only connection.close-ok is handled
	publishes bool
	stopped   bool // by an alarm
	resume    chan struct{}
	beats     *time.Timer
	heard     time.Time
	interval  time.Duration // of heartbeats; 0: none
}

// serve reads what the client writes, until the connection ends.
func (c *connection) serve() {
	in := bufio.NewReaderSize(c.end, frameMax)
	var head [8]byte
	if _, err := io.ReadFull(in, head[:]); err == nil {
		c.locked(c.start)
		for c.serveFrame(in) == nil {
			continue
		}
	}
	c.locked(func() { c.disturb(Cut) })
}

func (c *connection) locked(do func()) {
	c.broker.mu.Lock()
	defer c.broker.mu.Unlock()
	do()
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
	c.locked(func() {
		c.heard = time.Now()
		c.handle(head[0], binary.BigEndian.Uint16(head[1:]), payload[:len(payload)-1])
		if c.stopped && !c.closed {
			wait = c.resume
		}
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
		ch.header(payload)
	case kind == frameBody && ch != nil && ch.publishing != nil:
		ch.body(payload)
	case kind == frameMethod:
		r := read(payload)
		m := of(r.short(), r.short())
		if m == basicPublish { // its end is that of the content
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
	f := ask(Event{Connection: c.number, Name: c.name, Method: names[m], After: after})
	if f == None {
		return None
	}
	when := "before"
	if after {
		when = "after"
	}
	c.broker.note("fault %s %s of connection %d", when, names[m], c.number)
	if f != Nack {
		c.disturb(f)
	}
	return f
}

// disturb ends the connection, or silences it.
func (c *connection) disturb(f Fault) {
	switch {
	case c.closed || f == None:
	case f == Silent:
		c.broker.note("connection %d: silent", c.number)
		c.end.in.setSilent()
		c.end.out.setSilent()
	default:
		c.broker.note("connection %d: ended", c.number)
		c.closed = true
		b := c.broker
		b.connections = slices.DeleteFunc(b.connections, func(other *connection) bool { return other == c })
		if c.beats != nil {
			c.beats.Stop()
		}
		c.unblock()
		c.closeChannels()
		for _, name := range sortedKeys(b.queues) {
			if q := b.queues[name]; q.owner == c {
				b.remove(q)
			}
		}
		c.end.in.mu.Lock()
		c.end.in.silent = false
		c.end.in.mu.Unlock()
		c.end.in.close(true)
		c.end.out.close(f == Reset)
	}
}

// closeChannels ends all consumers before it gives messages back, so that none of them gets one.
func (c *connection) closeChannels() {
	var open []*channel
	for _, id := range sortedIDs(c.channels) {
		if ch := c.channels[id]; ch.end() {
			open = append(open, ch)
		}
	}
	for _, ch := range open {
		ch.reject(ch.settled(0, true), true, true, false)
	}
}

func sortedIDs(m map[uint16]*channel) []uint16 {
	ids := make([]uint16, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (c *connection) frame(kind byte, id uint16, payload []byte) {
	if c.closed {
		return
	}
	var w writer
	w.octet(kind).short(id).longText(string(payload)).octet(frameEnd)
	_, _ = c.end.Write(w.Bytes())
}

func (c *connection) send(id uint16, m method, fields func(w *writer)) {
	var w writer
	w.short(m.class()).short(m.number())
	if fields != nil {
		fields(&w)
	}
	c.frame(frameMethod, id, w.Bytes())
}

func (c *connection) start() {
	capabilities := amqp091.Table{}
	for _, name := range []string{
		"publisher_confirms", "exchange_exchange_bindings", "basic.nack", "consumer_cancel_notify", "connection.blocked",
		"consumer_priorities", "authentication_failure_close", "per_consumer_qos", "direct_reply_to",
	} {
		capabilities[name] = true
	}
	c.send(0, connectionStart, func(w *writer) {
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
	c.send(0, connectionClose, func(w *writer) { w.short(code).text(reason).short(by.class()).short(by.number()) })
}

func (c *connection) method(m method, id uint16, ch *channel, r reader) {
	switch {
	case m == connectionStartOk:
		client := r.table()
		c.name, _ = client["connection_name"].(string)
		c.broker.note("connection %d is %q", c.number, c.name)
		c.send(0, connectionTune, func(w *writer) { w.short(channelMax).long(frameMax).short(heartbeat) })
	case m == connectionTuneOk:
		r.short()
		r.long()
		c.interval = time.Duration(r.short()) * time.Second
		c.beat()
	case m == connectionOpen:
		c.send(0, connectionOpenOk, func(w *writer) { w.text("") })
	case m == connectionClose:
		c.send(0, connectionCloseOk, nil)
		c.disturb(Cut)
	case m == connectionCloseOk:
		c.disturb(Cut)
	case c.closing:
	case m == channelOpen:
		c.channels[id] = &channel{connection: c, id: id, deliveries: map[uint64]delivery{},
			consumers: map[string]*consumer{}}
		c.send(id, channelOpenOk, func(w *writer) { w.longText("") })
	case ch == nil: // after an error the client has methods on its way
	case m == channelClose:
		ch.close()
		delete(c.channels, id)
		c.send(id, channelCloseOk, nil)
	case m == channelCloseOk:
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
	c.heard = time.Now()
	c.beats = time.AfterFunc(c.interval/2, func() {
		c.locked(func() {
			switch {
			case c.closed:
			case time.Since(c.heard) > 2*c.interval && !c.stopped:
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
	case c.broker.blocked && c.publishes && !c.stopped:
		c.stopped, c.resume = true, make(chan struct{})
		c.send(0, connectionBlocked, func(w *writer) { w.text("low on memory") })
	case !c.broker.blocked && c.stopped:
		c.unblock()
		c.send(0, connectionFree, nil)
	}
}

func (c *connection) unblock() {
	if c.stopped {
		c.stopped = false
		close(c.resume)
	}
}

// unacknowledged returns the deliveries of a queue.
func (c *connection) unacknowledged(q *queue) (all []delivery) {
	for _, id := range sortedIDs(c.channels) {
		for _, d := range c.channels[id].deliveries {
			if d.queue == q {
				all = append(all, d)
			}
		}
	}
	slices.SortFunc(all, func(a, b delivery) int { return int(a.message.arrival) - int(b.message.arrival) })
	return all
}
