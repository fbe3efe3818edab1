package natsretry

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/options"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/retry"
)

const (
	defaultLease = 15 * time.Second
	minLease     = time.Second
)

// Config configures Connect and Letters.
type Config struct {
	// Conn is the app's connection to NATS. Required. It stays the app's: close it after the retry.Connection. Make it
	// with nats.MaxReconnects(-1): by default nats.go gives a connection up for good after an outage of two minutes.
	Conn *nats.Conn

	// Group is the name of the service, and the consumer group of the handlers whose options have none. Required by
	// Connect. The processes of a group share the messages of a topic. Services with different groups can use one
	// Prefix.
	Group string

	// Policy decides about the failures of all handlers without a policy of their own. Its Schedule is required by
	// Connect.
	Policy retry.Policy

	// Prefix begins the subjects of the retries, "<Prefix>.return.<group>.<topic>" for instance, and names their
	// stream. It has at most 40 characters, each a letter, a digit, a dot, an underscore or a hyphen. The default is
	// "retry".
	Prefix string

	// Lease is how long the server waits for a process that died, before it gives the messages which that process had
	// in flight to others. It is the AckWait of the consumers. A process that lives renews it, so that a handler may
	// take longer. The lock of Letters ends after the same time. All processes of a group need the same. The default is
	// 15 seconds, the minimum 1 second.
	Lease time.Duration

	// Replicas is how many servers store each stream that Connect makes. A stream that exists is not changed. The
	// default is 3 in a cluster, and 1 on a server without one. At most 5.
	Replicas int
}

// plainConfig is a Config without its methods.
type plainConfig Config

// Format implements fmt.Formatter. It prints the configuration whatever the verb as %v does: with a wrong verb, fmt
// prints what a pointer leads to, here the password of Conn.
func (c Config) Format(state fmt.State, _ rune) {
	_, _ = fmt.Fprintf(state, fmt.FormatString(state, 'v'), plainConfig(c))
}

func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, "retry")
	c.Lease = cmp.Or(c.Lease, defaultLease)
	return c
}

func (c Config) names() relaytopic.Names { return relaytopic.Names{Prefix: c.Prefix} }

// Validate reports all faults of a configuration of Connect in one error. A zero field that has a default is valid.
func (c Config) Validate() error {
	all := c.faults()
	if c.Group == "" {
		all = append(all, errors.New("Group is empty: set it to the name of the service"))
	}
	all = append(all, faults.In("Policy", options.Relayed(c.Policy)))
	return errors.Join(all...)
}

// faults returns those of the fields that Letters uses, too.
func (c Config) faults() (faults []error) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.Conn == nil {
		fault("Conn is nil: set the connection that nats.Connect has returned")
	}
	if err := c.names().Validate(); err != nil {
		fault("%w", err)
	} else if !validPrefix(c.withDefaults().Prefix) {
		fault("Prefix is %q: a dot must be between other characters, because NATS subjects have no empty part", c.Prefix)
	}
	if c.Lease != 0 && c.Lease < minLease {
		fault("Lease is %v: it must be 0 (the default, %v) or at least %v", c.Lease, defaultLease, minLease)
	}
	if c.Replicas < 0 || c.Replicas > 5 {
		fault("Replicas is %d: it must be 0 (the default) to 5", c.Replicas)
	}
	return faults
}
