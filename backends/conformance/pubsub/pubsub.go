// Package pubsub opens each Pub/Sub with retries as an app opens it. The conformance suite, its processes and the
// programs beside it use it. A backend is one file here, one line in the list below, and an entry of package registry.
package pubsub

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/retry"
)

// Backend is a Pub/Sub with retries on one server.
type Backend interface {
	// Publisher connects a publisher for the app's topics: that of Watermill's own Pub/Sub, as another service has it.
	Publisher() (message.Publisher, error)

	// Connect connects an app. Close of the Connection also closes what Connect has opened for it.
	Connect(App) (retry.Connection, error)

	// Letters connects to the dead letters of an app.
	Letters(App) (letters.Store, error)

	// DeadTopic returns the queue or topic of a handler's dead letters: the first parameter of the Store's methods.
	DeadTopic(app App, topic string) string

	// Left returns how many messages the server stores for the retries of an app, by the server's own count. The topics
	// are those of the app's handlers.
	Left(ctx context.Context, app App, topics []string) (int, error)
}

// Cleaner is a Backend on a server that other apps may use. Clean removes what an app made there.
type Cleaner interface {
	Clean(app App, topics []string) error
}

// App configures an app's retries.
type App struct {
	Group  string // its name, and the consumer group of handlers without one
	Prefix string // the prefix of the topics of the retries
	Policy retry.Policy

	// Lease is how long a process that has died keeps its messages, and the lock of a redrive. 0: the default of the
	// backend.
	Lease time.Duration
}

// openers are the backends by their names. The address is that of a server.
var openers = map[string]func(address string, logger watermill.LoggerAdapter) Backend{
	"rabbitmq": rabbitMQ,
	"nats":     natsRetry,
	"redis":    redisRetry,
	"postgres": postgresRetry,
	"kafka":    kafkaRetry,
}

// Open returns the backend with a name, on the server at an address.
func Open(name, address string, logger watermill.LoggerAdapter) (Backend, error) {
	open := openers[name]
	if open == nil {
		return nil, fmt.Errorf("there is no backend %q: it must be one of %q", name, slices.Sorted(maps.Keys(openers)))
	}
	return open(address, logger), nil
}

// module is a backend whose module has this configuration, and makes its topics by a prefix.
type module[C any] struct {
	logger  watermill.LoggerAdapter
	config  func(App) (config C, end func() error, err error)
	connect func(C, watermill.LoggerAdapter) (retry.Connection, error)
	letters func(C, watermill.LoggerAdapter) (letters.Store, error)
}

// Connect implements Backend.
func (m module[C]) Connect(app App) (retry.Connection, error) {
	config, end, err := m.config(app)
	if err != nil {
		return nil, err
	}
	connection, err := m.connect(config, m.logger)
	if err != nil {
		return nil, errors.Join(err, end())
	}
	return closing{connection, end}, nil
}

// closing is a Connection that closes more than itself.
type closing struct {
	retry.Connection
	after func() error
}

func (c closing) Close() error { return errors.Join(c.Connection.Close(), c.after()) }

// Letters implements Backend.
func (m module[C]) Letters(app App) (letters.Store, error) {
	config, end, err := m.config(app)
	if err != nil {
		return nil, err
	}
	store, err := m.letters(config, m.logger)
	if err != nil {
		return nil, errors.Join(err, end())
	}
	return closingStore{store, end}, nil
}

// closingStore is a Store that closes more than itself.
type closingStore struct {
	letters.Store
	after func() error
}

func (c closingStore) Close() error { return errors.Join(c.Store.Close(), c.after()) }

// DeadTopic implements Backend.
func (module[C]) DeadTopic(app App, topic string) string {
	return relaytopic.Names{Prefix: app.Prefix}.Dead(relaytopic.Key(app.Group, topic))
}
