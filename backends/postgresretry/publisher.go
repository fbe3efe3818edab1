package postgresretry

import (
	"context"

	wmsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/relaytopic"
)

// publisher publishes to return topics and dead-letter topics, and to the app's topics in the way of watermill-sql.
type publisher struct {
	waiting *waiting
	topics  *appTopics
	stock   *wmsql.Publisher
	names   relaytopic.Names
	source  *source // the source of a connection; nil: there is none
}

// CheckTopic refuses the topic of a handler before any handler consumes.
func (*publisher) CheckTopic(topic string) error { return checkTopic(topic, true) }

// Publish implements message.Publisher. It stops at the first message that cannot be published.
func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		switch ctx := msg.Context(); {
		case p.names.IsDead(topic):
			if err := p.waiting.putDead(ctx, topic, msg); err != nil {
				return err
			}
		case p.names.IsReturn(topic):
			wait, err := p.waiting.put(ctx, topic, msg)
			if err != nil {
				return err
			}
			if p.source != nil {
				p.source.watch.Expect(topic, wait)
			}
		default:
			return p.publishToApp(ctx, topic, messages)
		}
	}
	return nil
}

func (p *publisher) publishToApp(ctx context.Context, topic string, messages []*message.Message) error {
	if err := checkTopic(topic, false); err != nil {
		return err
	}
	if err := p.topics.makeMessages(context.WithoutCancel(ctx), topic); err != nil {
		return err
	}
	if err := p.stock.Publish(topic, messages...); err != nil {
		return err
	}
	if p.source != nil {
		p.source.published(topic)
	}
	return nil
}

// Close implements message.Publisher. It closes after all subscribers of the connection.
func (p *publisher) Close() error {
	if p.source != nil {
		p.source.watch.Close()
	}
	return p.stock.Close()
}

// String returns the name that the router gives to the publisher.
func (*publisher) String() string { return "postgresretry.Publisher" }
