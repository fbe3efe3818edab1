package publisher

import (
	"errors"
	"fmt"
	"sync"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

var errRedeclareTimeout = errors.New("Config.Redeclare did not return in time")

// redeclares are the calls of Config.Redeclare under way, at most one per routing key. One that hangs stays here, so that
// it is joined, and does not multiply.
type redeclares struct {
	mu       sync.Mutex
	underWay map[string]*redeclaration
}

type redeclaration struct {
	done chan struct{}
	err  error // set before done is closed
}

// redeclare starts, or joins, the redeclaration for a routing key.
func (p *Publisher) redeclare(routingKey string) *redeclaration {
	p.redeclares.mu.Lock()
	defer p.redeclares.mu.Unlock()
	if d := p.redeclares.underWay[routingKey]; d != nil {
		return d
	}
	d := &redeclaration{done: make(chan struct{})}
	p.redeclares.underWay[routingKey] = d
	// Not one of p.workers: the application's function may hang for ever, Close may not.
	go func() {
		err := p.runRedeclare(routingKey)
		p.redeclares.mu.Lock()
		delete(p.redeclares.underWay, routingKey)
		p.redeclares.mu.Unlock()
		d.err = err
		close(d.done)
	}()
	return d
}

func (p *Publisher) runRedeclare(routingKey string) (err error) {
	state := p.state.Load()
	if state.connection == nil {
		return ErrNotConnected
	}
	channel, err := state.connection.client.Channel()
	if err != nil {
		return err
	}
	defer closeQuietly(channel)
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("Config.Redeclare panicked: %v", fault)
		}
	}()
	return p.config.Redeclare(channel, routingKey)
}

func closeQuietly(channel *amqp091.Channel) { _ = channel.Close() }
