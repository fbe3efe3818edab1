package publisher

import (
	"fmt"
	"sync"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// declarations are the calls of one of the application's functions under way, at most one per destination. A call that hangs stays
// here, so that later publishes join it and do not start another one.
type declarations struct {
	link     *link
	field    string // Config.DeclareExchange or Config.Redeclare
	function func(channel *amqp091.Channel, d destination) error

	mu       sync.RWMutex
	underWay map[destination]*declaration
	declared map[destination]*connection // the connection of the last call without an error; nil: it is not stored
}

// A destination is what a call is for: an exchange, or a routing key of one.
type destination struct{ exchange, routingKey string }

type declaration struct {
	done chan struct{}
	err  error // set before done is closed
}

func newDeclarations(l *link, field string, function func(*amqp091.Channel, destination) error) *declarations {
	return &declarations{link: l, field: field, function: function, underWay: make(map[destination]*declaration)}
}

// remember makes once return nil for destinations that were declared.
func (d *declarations) remember() *declarations {
	d.declared = make(map[destination]*connection)
	return d
}

// once starts a call, or joins the one under way. It returns nil when there was one without an error on this connection.
func (d *declarations) once(to destination, c *connection) *declaration {
	d.mu.RLock()
	declared := d.declared[to] == c
	d.mu.RUnlock()
	if declared {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.declared[to] == c {
		return nil
	}
	return d.start(to)
}

// again starts a call, or joins the one under way. Until it has succeeded, once does not return nil.
func (d *declarations) again(to destination) *declaration {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.declared, to)
	return d.start(to)
}

func (d *declarations) start(to destination) *declaration {
	if call := d.underWay[to]; call != nil {
		return call
	}
	call := &declaration{done: make(chan struct{})}
	d.underWay[to] = call
	// Not one of link.workers: the application's function may never return, and Close must return.
	go func() {
		var c *connection
		c, call.err = d.run(to)
		d.mu.Lock()
		delete(d.underWay, to)
		if call.err == nil && d.declared != nil {
			d.declared[to] = c
		}
		d.mu.Unlock()
		close(call.done)
	}()
	return call
}

func (d *declarations) run(to destination) (c *connection, err error) {
	c, err = d.link.now()
	if err != nil {
		return nil, err
	}
	channel, err := c.Client.Channel()
	if err != nil {
		return nil, err
	}
	defer func() { _ = channel.Close() }()
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("%s panicked: %v", d.field, fault)
		}
	}()
	return c, d.function(channel, to)
}
