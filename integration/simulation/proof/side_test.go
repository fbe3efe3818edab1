package proof

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

const (
	clients = 2
	slots   = 4 // of consumers
)

// side runs a script with a broker, the model or a real one. The unmodified client speaks to both.
type side struct {
	prefix, vhost string // of the names on this broker
	url           string
	forgets       bool // whether a dead letter was delivered before its death
	dial          func(network, address string) (net.Conn, error)
	policy        func(pattern string, definition map[string]any) string
	clients       [clients + 1]*client // the last one looks
	consumers     [slots]*consumer
}

// client is a connection with a channel for all but consumers.
type client struct {
	network  net.Conn
	link     *amqp091.Connection
	channel  *amqp091.Channel
	closed   chan *amqp091.Error
	returned chan amqp091.Return
	held     *holder // deliveries of basic.get
}

// holder has deliveries that are not settled.
type holder struct {
	mu     sync.Mutex
	all    []amqp091.Delivery
	ended  string // how the channel or the consumer has ended
	number int    // of all deliveries
}

// consumer has a channel of its own, so that the tags of its deliveries are in the order of one queue.
type consumer struct {
	holder
	client  int
	channel *amqp091.Channel
}

// name returns the name of a queue or exchange on this broker.
func (s *side) name(of string) string {
	if of == "" {
		return ""
	}
	return s.prefix + of
}

// named returns arguments with names of this broker.
func (s *side) named(arguments amqp091.Table) amqp091.Table {
	own := maps.Clone(arguments)
	for _, key := range []string{"x-dead-letter-exchange", "x-dead-letter-routing-key", "alternate-exchange"} {
		if name, has := own[key].(string); has {
			own[key] = s.name(name)
		}
	}
	return own
}

// common returns a text without what differs between the sides.
func (s *side) common(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, s.prefix, ""), "vhost '"+s.vhost+"'", "vhost '/'")
}

func (s *side) answer(err error) string {
	var refused *amqp091.Error
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &refused) && refused.Server:
		return s.common(fmt.Sprint(refused.Code, " ", refused.Reason))
	default:
		return s.common(err.Error())
	}
}

// client returns a client with an open channel.
func (s *side) client(number int) *client {
	c := s.clients[number]
	if c == nil {
		c = &client{}
		s.clients[number] = c
	}
	if c.link == nil || c.link.IsClosed() {
		link, err := amqp091.DialConfig(s.url, amqp091.Config{Heartbeat: time.Minute, Dial: func(network, address string) (
			net.Conn, error,
		) {
			conn, err := s.dial(network, address)
			c.network = conn
			return conn, err
		}})
		if err != nil {
			panic(fmt.Sprintf("dial: %v", err))
		}
		c.link, c.channel = link, nil
	}
	if c.channel == nil || c.channel.IsClosed() {
		channel, err := c.link.Channel()
		if err == nil {
			err = channel.Confirm(false)
		}
		if err != nil {
			panic(fmt.Sprintf("channel: %v", err))
		}
		c.channel, c.held = channel, &holder{}
		c.closed = channel.NotifyClose(make(chan *amqp091.Error, 1))
		c.returned = channel.NotifyReturn(make(chan amqp091.Return, 8))
	}
	return c
}

func (s *side) sync(number int, do func(ch *amqp091.Channel) error) string {
	return s.answer(do(s.client(number).channel))
}

func (s *side) counted(number int, do func(ch *amqp091.Channel) (int, error)) string {
	n, err := do(s.client(number).channel)
	return fmt.Sprint(n, " ", s.answer(err))
}

func (s *side) publish(number int, exchange, key string, mandatory bool, m amqp091.Publishing) string {
	c := s.client(number)
	confirm, err := c.channel.PublishWithDeferredConfirm(exchange, key, mandatory, false, m)
	if err != nil {
		return s.answer(err)
	}
	confirmed := confirm.Wait()
	if c.channel.IsClosed() {
		return s.answer(<-c.closed)
	}
	var back string
	select {
	case r := <-c.returned:
		back = s.common(fmt.Sprintf(" returned %d %s %q %q %s", r.ReplyCode, r.ReplyText, r.Exchange, r.RoutingKey, r.Body))
	default:
	}
	return fmt.Sprint(confirmed, back)
}

func (s *side) get(number int, queue string, automatic bool) string {
	c := s.client(number)
	d, has, err := c.channel.Get(s.name(queue), automatic)
	switch {
	case err != nil:
		return s.answer(err)
	case !has:
		return "empty"
	case !automatic:
		c.held.add(d)
	}
	return fmt.Sprint(s.text(d), " before ", d.MessageCount)
}

func (h *holder) add(d amqp091.Delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.number++
	h.all = append(h.all, d)
}

func (s *side) consume(slot, number int, queue string, prefetch int, automatic, exclusive bool, a amqp091.Table) string {
	if old := s.consumers[slot]; old != nil && !old.channel.IsClosed() {
		return "the consumer is in use"
	}
	channel, err := s.client(number).link.Channel()
	if err != nil {
		panic(fmt.Sprintf("channel: %v", err))
	}
	if err := channel.Qos(prefetch, 0, false); err != nil {
		return s.answer(err)
	}
	c := &consumer{client: number, channel: channel}
	closed := channel.NotifyClose(make(chan *amqp091.Error, 1))
	deliveries, err := channel.Consume(s.name(queue), "tag", automatic, exclusive, false, false, a)
	if err != nil {
		return s.answer(err)
	}
	s.consumers[slot] = c
	go func() {
		for d := range deliveries {
			if automatic {
				d.DeliveryTag = 0
			}
			c.add(d)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ended = "no consumer"
		select {
		case err := <-closed:
			c.ended = "closed"
			if err != nil && err.Server {
				c.ended = fmt.Sprint("closed ", err.Code)
			}
		default:
		}
	}()
	return "ok"
}

func (s *side) cancel(slot int) string {
	c := s.consumers[slot]
	if c == nil || c.channel.IsClosed() {
		return "nothing"
	}
	return s.answer(c.channel.Cancel("tag", false))
}

func (s *side) closeChannel(slot int) {
	if c := s.consumers[slot]; c != nil && !c.channel.IsClosed() {
		_ = c.channel.Close()
		s.consumers[slot] = nil
	}
}

// several reports whether a client has deliveries, and several channels that could have them.
func (s *side) several(number int) bool {
	c := s.clients[number]
	if c == nil || c.link.IsClosed() {
		return false
	}
	channels, deliveries := 0, len(c.held.all)
	if deliveries > 0 {
		channels++
	}
	for _, consumer := range s.consumers {
		if consumer != nil && consumer.client == number && !consumer.channel.IsClosed() {
			channels++
			consumer.mu.Lock()
			deliveries += len(consumer.all)
			consumer.mu.Unlock()
		}
	}
	return channels > 1 && deliveries > 0
}

// cut ends the connection of a client as a network does. The order in which a broker takes back what several channels
// have is open.
func (s *side) cut(number int) string {
	c := s.clients[number]
	if c == nil || c.link.IsClosed() {
		return "nothing"
	}
	if s.several(number) {
		return "several channels have deliveries"
	}
	ended := c.link.NotifyClose(make(chan *amqp091.Error, 1))
	_ = c.network.Close()
	<-ended
	s.clients[number] = nil
	for slot, consumer := range s.consumers {
		if consumer != nil && consumer.client == number {
			s.consumers[slot] = nil
		}
	}
	return "ok"
}

// end closes what the script has opened, one channel after the other. What is not settled is back in its queue then.
func (s *side) end() {
	for slot := range slots {
		s.cancel(slot)
	}
	for slot := range slots {
		s.closeChannel(slot)
	}
	for number, c := range s.clients[:clients] {
		if c != nil && !c.channel.IsClosed() {
			_ = c.channel.Close()
		}
		s.cut(number)
	}
}

// settle settles one of the deliveries that a holder has.
func (s *side) settle(number, at int, how string, multiple, requeue, unknown bool) string {
	var h *holder
	var channel *amqp091.Channel
	switch {
	case number < slots && s.consumers[number] != nil:
		h, channel = &s.consumers[number].holder, s.consumers[number].channel
	case number >= slots && s.clients[number-slots] != nil:
		h, channel = s.clients[number-slots].held, s.clients[number-slots].channel
	default:
		return "no holder"
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if channel.IsClosed() || len(h.all) == 0 && !unknown {
		return "nothing"
	}
	tag := uint64(1000)
	if !unknown {
		at %= len(h.all)
		tag = h.all[at].DeliveryTag
		if tag == 0 {
			return "nothing"
		}
		if multiple && how != "reject" {
			h.all = h.all[at+1:]
		} else {
			h.all = slices.Delete(h.all, at, at+1)
		}
	}
	switch how {
	case "ack":
		return s.answer(channel.Ack(tag, multiple))
	case "nack":
		return s.answer(channel.Nack(tag, multiple, requeue))
	default:
		return s.answer(channel.Reject(tag, requeue))
	}
}

// state returns what the queues have, and what the consumers have.
func (s *side) state(queues []string) string {
	var text strings.Builder
	for _, name := range queues {
		q, err := s.client(clients).channel.QueueDeclarePassive(s.name(name), true, false, false, false, nil)
		var refused *amqp091.Error
		switch {
		case err == nil:
			fmt.Fprintf(&text, "%s %d/%d  ", name, q.Messages, q.Consumers)
		case errors.As(err, &refused):
			fmt.Fprintf(&text, "%s %d  ", name, refused.Code)
		default:
			fmt.Fprintf(&text, "%s %v  ", name, err)
		}
	}
	for slot, c := range s.consumers {
		if c != nil {
			c.mu.Lock()
			fmt.Fprintf(&text, "\n      consumer %d: %s", slot, c.ended)
			if !strings.HasPrefix(c.ended, "closed") {
				fmt.Fprintf(&text, "%d %s", c.number, s.texts(c.all))
			}
			c.mu.Unlock()
		}
	}
	for number, c := range s.clients[:clients] {
		if c != nil && !c.channel.IsClosed() {
			fmt.Fprintf(&text, "\n      client %d: %s", number, s.texts(c.held.all))
		}
	}
	return text.String()
}

// drain returns what lies in a queue.
func (s *side) drain(queue string) string {
	var all []amqp091.Delivery
	for {
		d, has, err := s.client(clients).channel.Get(s.name(queue), true)
		if err != nil {
			return s.answer(err)
		}
		if !has {
			break
		}
		all = append(all, d)
	}
	if sinks(queue) {
		slices.SortStableFunc(all, func(a, b amqp091.Delivery) int { return cmp.Compare(s.text(a), s.text(b)) })
	}
	return s.texts(all)
}

func (s *side) texts(all []amqp091.Delivery) string {
	texts := make([]string, len(all))
	for i, d := range all {
		texts[i] = s.text(d)
	}
	return strings.Join(texts, ", ")
}

// text returns what a message is for its consumer.
func (s *side) text(d amqp091.Delivery) string {
	if _, dead := d.Headers["x-death"]; dead && s.forgets {
		d.Redelivered = false
		d.Headers = maps.Clone(d.Headers)
		delete(d.Headers, "x-delivery-count")
		delete(d.Headers, "x-acquired-count")
	}
	properties := fmt.Sprint(d.Priority, d.Expiration, d.DeliveryMode, d.MessageId, d.ContentType, d.ReplyTo)
	return s.common(fmt.Sprintf("%s(%q %q redelivered=%v %s %v)", d.Body, d.Exchange, d.RoutingKey, d.Redelivered,
		properties, timeless(d.Headers)))
}

// timeless returns headers without the times of deaths.
func timeless(value any) any {
	switch v := value.(type) {
	case amqp091.Table:
		own := map[string]any{}
		for key, each := range v {
			if key != "time" {
				own[key] = timeless(each)
			}
		}
		return own
	case []any:
		own := make([]any, len(v))
		for i := range v {
			own[i] = timeless(v[i])
		}
		return own
	default:
		return value
	}
}
