package door

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/pauses"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/refusal"
	"github.com/tieredretry/watermill-retry/internal/warning"
)

// producedAfter is how long after the start the broker is asked for the topics to which handlers produce. Apps that
// start together declare their queues meanwhile.
const producedAfter = 10 * time.Second

// produced logs the topics to which handlers produce and that no queue gets.
type produced struct {
	mu      sync.Mutex
	topics  map[string]string // the topics that the broker has not been asked for, with the name of a handler
	looking bool
}

func (p *produced) add(handler, topic string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.topics == nil {
		p.topics = map[string]string{}
	}
	p.topics[topic] = handler
}

// begin is called when a handler consumes.
func (p *produced) begin(l *lookout, app appPublisher, logger watermill.LoggerAdapter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.topics) > 0 && !p.looking {
		p.looking = true
		go p.run(l, app, logger)
	}
}

// run asks for each topic until the broker has answered.
func (p *produced) run(l *lookout, app appPublisher, logger watermill.LoggerAdapter) {
	for {
		if pauses.Sleep(l.closing, producedAfter) != nil {
			return
		}
		p.mu.Lock()
		topics := maps.Clone(p.topics)
		p.mu.Unlock()
		answered := l.missing(app, topics, logger)
		p.mu.Lock()
		for _, topic := range answered {
			delete(p.topics, topic)
		}
		p.looking = len(p.topics) > 0
		again := p.looking
		p.mu.Unlock()
		if !again {
			return
		}
	}
}

// missing logs those of the topics that no queue gets, and returns those for which the broker has answered.
func (l *lookout) missing(app appPublisher, topics map[string]string, logger watermill.LoggerAdapter) []string {
	ctx, cancel := context.WithTimeout(l.closing, lookTimeout)
	defer cancel()
	b := &bounded{lookout: l, until: fourFifths(ctx), ctx: ctx}
	defer b.close()
	var answered []string
	var sources map[string]bool
	for topic, handler := range topics {
		exchange, key, err := app.route(topic)
		exists, known := true, true
		switch {
		case err != nil: // AddHandler has reported it
		case exchange == "":
			exists, known = b.exists(key)
		case l.api != nil: // AMQP cannot ask for bindings
			if sources == nil {
				if sources, err = l.api.Sources(ctx); err != nil {
					sources = map[string]bool{}
				}
			}
			exists, known = sources[exchange], len(sources) > 0
		}
		if !known {
			continue
		}
		answered = append(answered, topic)
		if !exists {
			warning.Log(logger, fmt.Sprintf("Handler %q produces messages for topic %q, and %s. Until then its "+
				"messages fail, and are retried", handler, topic, app.missing(topic, exchange, key)),
				watermill.LogFields{"topic": topic})
		}
	}
	return answered
}

// exists reports whether a queue exists, and whether the broker has answered.
func (b *bounded) exists(queue string) (exists, known bool) {
	if b.used() {
		return false, false
	}
	_, err := b.declare(queue)
	return !refusal.IsCode(err, amqp091.NotFound), !b.lost()
}
