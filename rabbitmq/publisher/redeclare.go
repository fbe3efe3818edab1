package publisher

import (
	"fmt"
	"sync"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// redeclares are the calls of Config.Redeclare under way, at most one per routing key. A call that hangs stays here, so that
// later publishes join it and do not start another one.
type redeclares struct {
	link     *link
	function func(channel *amqp091.Channel, routingKey string) error // Config.Redeclare

	mu       sync.Mutex
	underWay map[string]*redeclaration
}

type redeclaration struct {
	done chan struct{}
	err  error // set before done is closed
}

// start starts the redeclaration for a routing key, or joins the one under way.
func (r *redeclares) start(routingKey string) *redeclaration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := r.underWay[routingKey]; d != nil {
		return d
	}
	d := &redeclaration{done: make(chan struct{})}
	r.underWay[routingKey] = d
	// Not one of link.workers: the application's function may never return, and Close must return.
	go func() {
		err := r.run(routingKey)
		r.mu.Lock()
		delete(r.underWay, routingKey)
		r.mu.Unlock()
		d.err = err
		close(d.done)
	}()
	return d
}

func (r *redeclares) run(routingKey string) (err error) {
	state := r.link.state.Load()
	if state.connection == nil {
		return ErrNotConnected
	}
	channel, err := state.connection.Client.Channel()
	if err != nil {
		return err
	}
	defer func() { _ = channel.Close() }()
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("Config.Redeclare panicked: %v", fault)
		}
	}()
	return r.function(channel, routingKey)
}
