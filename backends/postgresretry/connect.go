package postgresretry

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	wmsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/pooler"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// Connect returns a connection whose messages wait in a table of the database, or an error that reports all faults of
// the configuration. It makes the tables and functions of Config.Table where they do not exist; Schema has the
// statements. A nil logger logs nothing. Close the router first, then the connection, then the database.
func Connect(config Config, logger watermill.LoggerAdapter) (retry.Connection, error) {
	config.setDefaults()
	if err := config.Validate(); err != nil {
		return nil, faults.Of("invalid postgresretry.Config", err)
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	if err := pooler.CheckDB(context.Background(), config.DB); err != nil {
		return nil, err
	}
	publisher, err := newPublisher(config, logger)
	if err != nil {
		return nil, err
	}
	table := newTable(config.Table)
	if err := table.make(context.Background(), config.DB); err != nil {
		return nil, err
	}
	if err := publisher.waiting.lookAtIsolation(context.Background()); err != nil {
		return nil, err
	}
	publisher.source = newSource(publisher.waiting, logger)
	return relay.Connect(relay.Config{
		Publisher: publisher, Policy: config.Policy, Group: config.Group, Prefix: config.Prefix, DelayedReturns: true,
		NewSubscriber: func(p relay.SubscriberParams) (message.Subscriber, error) {
			return &subscriber{config: config, params: p, publisher: publisher, logger: logger}, nil
		},
	}, logger)
}

func newPublisher(config Config, logger watermill.LoggerAdapter) (*publisher, error) {
	stock, err := wmsql.NewPublisher(wmsql.BeginnerFromStdSQL(config.DB), wmsql.PublisherConfig{SchemaAdapter: appSchema},
		logger)
	if err != nil {
		return nil, fmt.Errorf("cannot make the publisher of the app's topics: %w", err)
	}
	return &publisher{
		waiting: newWaiting(config.DB, newTable(config.Table), config.Lease),
		topics:  &appTopics{db: config.DB},
		stock:   stock,
		names:   relaytopic.Names{Prefix: config.Prefix},
	}, nil
}
