package publisher

import (
	"fmt"
	"sync"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// declarations are the calls of one of the application's functions under way, at most one per name. A call that hangs stays here,
// so that later publishes join it and do not start another one.
type declarations struct {
	link     *link
	field    string // Config.DeclareExchange or Config.Redeclare
	function func(channel *amqp091.Channel, name string) error

	mu       sync.RWMutex
	underWay map[string]*declaration
	declared map[string]*connection // the connection of the last call without an error, by name; nil: it is not stored
}

type declaration struct {
	done chan struct{}
	err  error // set before done is closed
}

func newDeclarations(l *link, field string, function func(*amqp091.Channel, string) error) *declarations {
	return &declarations{link: l, field: field, function: function, underWay: make(map[string]*declaration)}
}

// remember makes once return nil for names that were declared.
func (d *declarations) remember() *declarations {
	d.declared = make(map[string]*connection)
	return d
}

// once starts a call, or joins the one under way. It returns nil when there was one without an error on this connection.
func (d *declarations) once(name string, c *connection) *declaration {
	d.mu.RLock()
	declared := d.declared[name] == c
	d.mu.RUnlock()
	if declared {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.declared[name] == c {
		return nil
	}
	return d.start(name)
}

// again starts a call, or joins the one under way. Until it has succeeded, once does not return nil.
func (d *declarations) again(name string) *declaration {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.declared, name)
	return d.start(name)
}

func (d *declarations) start(name string) *declaration {
	if call := d.underWay[name]; call != nil {
		return call
	}
	call := &declaration{done: make(chan struct{})}
	d.underWay[name] = call
	// Not one of link.workers: the application's function may never return, and Close must return.
	go func() {
		var c *connection
		c, call.err = d.run(name)
		d.mu.Lock()
		delete(d.underWay, name)
		if call.err == nil && d.declared != nil {
			d.declared[name] = c
		}
		d.mu.Unlock()
		close(call.done)
	}()
	return call
}

func (d *declarations) run(name string) (c *connection, err error) {
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
	return c, d.function(channel, name)
}
