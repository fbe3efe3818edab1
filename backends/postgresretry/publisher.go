package postgresretry

import (
	"context"
	"fmt"
	"unicode/utf8"

	wmsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/internal/sqlstate"
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
		return p.explain(ctx, topic, messages, err)
	}
	if p.source != nil {
		p.source.published(topic)
	}
	return nil
}

// longestUUID is what the column of watermill-sql's tables has room for, in characters.
const longestUUID = 36

// explain adds to an error of PostgreSQL the topic, what is wrong, and what to do.
func (p *publisher) explain(ctx context.Context, topic string, messages []*message.Message, err error) error {
	table := appSchema.MessagesTable(topic)
	switch sqlstate.Of(err) {
	case "22001": // string_data_right_truncation
		for _, msg := range messages {
			if n := utf8.RuneCountInString(msg.UUID); n > longestUUID {
				return fmt.Errorf("topic %q: the UUID %q has %d characters, at most %d fit into its table: publish the "+
					"message with a shorter one: %w", topic, msg.UUID, n, longestUUID, err)
			}
		}
	case "42P01": // undefined_table
		return fmt.Errorf("the table %s of topic %q is gone: restart the app, which makes it, or make it as its owner: %w",
			table, topic, err)
	case "42501": // insufficient_privilege
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementTimeout)
		defer cancel()
		if lacking := p.topics.checkInsert(ctx, table); lacking != nil {
			return fmt.Errorf("topic %q: %w: %w", topic, lacking, err)
		}
	}
	return fmt.Errorf("topic %q: %w", topic, err)
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
