package redisretry

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/options"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/letters/relayletters"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	defaultLease = 15 * time.Second
	minLease     = time.Second
)

// Config configures Connect and Letters.
type Config struct {
	// Client is the app's client. Required. Close it after the Connection: the Connection does not close it. A
	// *redis.ClusterClient may be used. The default size of its pool is enough.
	Client redis.UniversalClient

	// Group is the name of the service, and the consumer group of its handlers whose Options have none. Required by
	// Connect. Services with different groups do not get each other's retries.
	Group string

	// Policy decides about failures of all handlers without a policy of their own. Its Schedule is required by Connect.
	Policy retry.Policy

	// Prefix is the start of the names of return topics and dead-letter topics: at most 40 characters, each a letter, a
	// digit, a dot, an underscore or a hyphen. All processes of a service need the same. The default is "retry".
	Prefix string

	// Lease is how long the server keeps a message in flight for a process that has died. It is renewed while a handler
	// runs, so it need not be longer than a handler takes. It is that of the lock of a redrive or discard, too. All
	// processes of a service need the same. The default is 15 seconds, the minimum 1 second.
	Lease time.Duration
}

func (c *Config) names() relaytopic.Names { return relaytopic.Names{Prefix: c.Prefix} }

func (c *Config) lease() time.Duration { return cmp.Or(c.Lease, defaultLease) }

// Validate reports all faults of the configuration of Connect in one error. A zero field that has a default is valid.
func (c Config) Validate() error {
	all := []error{c.validateServer()}
	if c.Group == "" {
		all = append(all, errors.New("Group is empty: set it to the name of the service; it is the consumer group "+
			"of the handlers"))
	}
	all = append(all, faults.In("Policy", options.Relayed(c.Policy)))
	return errors.Join(all...)
}

// validateServer reports the faults of what Letters needs.
func (c *Config) validateServer() error {
	var faults []error
	if c.Client == nil {
		faults = append(faults, errors.New("Client is nil: set it to a client of go-redis, such as redis.NewClient"))
	}
	faults = append(faults, c.names().Validate())
	if c.Lease != 0 && c.Lease < minLease {
		faults = append(faults, fmt.Errorf("Lease is %v: it must be 0 (the default, %v) or at least %v", c.Lease,
			defaultLease, minLease))
	}
	return errors.Join(faults...)
}

// Connect returns a connection to Redis, or an error that reports all faults of the configuration. It does not connect
// to the server before a handler subscribes: where that fails, the router's Run returns the error. A line of the log
// warns of a server that can remove what waits, as soon as it answers. A nil logger logs nothing.
func Connect(config Config, logger watermill.LoggerAdapter) (retry.Connection, error) {
	if err := config.Validate(); err != nil {
		return nil, faults.Of("invalid redisretry.Config", err)
	}
	s := newServer(config, logger)
	connection, err := relay.Connect(relay.Config{
		Publisher: lastPublisher{publisher{s}}, AppPublisher: publisher{s}, Policy: config.Policy, Group: config.Group,
		Prefix: config.Prefix, DelayedReturns: true,
		NewSubscriber: func(p relay.SubscriberParams) (message.Subscriber, error) { return newSubscriber(s, p), nil },
	}, logger)
	if err != nil {
		s.close()
		return nil, err
	}
	s.ended.Go(s.watchEviction)
	return connection, nil
}

// Letters opens the dead letters of all services with a prefix. It uses Client, Prefix and Lease of the configuration.
// The first parameter of the Store's methods is a dead-letter topic, "<Prefix>.dead.<group>.<topic>". A nil logger logs
// nothing.
//
// A redrive or discard has a lock on the server, so that two at the same time are refused with letters.ErrBusy.
func Letters(config Config, logger watermill.LoggerAdapter) (letters.Store, error) {
	if err := config.validateServer(); err != nil {
		return nil, faults.Of("invalid redisretry.Config", err)
	}
	s := newServer(config, logger)
	return relayletters.Open(relayletters.Config{
		Publisher: lastPublisher{publisher{s}}, Reader: reader{s}, Prefix: config.Prefix,
	})
}
