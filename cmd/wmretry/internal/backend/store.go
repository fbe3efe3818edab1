package backend

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/internal/operate"
	"github.com/tieredretry/watermill-retry/internal/relaytopic"
	"github.com/tieredretry/watermill-retry/letters"
	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// Config is what the flags and the environment name.
type Config struct {
	Address    Address
	TLS        *tls.Config // nil: as the address states
	Prefix     string
	Group      string // the consumer group of TOPIC; empty: the only one that the topic has
	Table      string // the table on PostgreSQL
	Management string // the management API of RabbitMQ
	AnyLimit   bool   // as deadletter.Config.AnyLimit
	Logger     watermill.LoggerAdapter
}

// A Store is the letters of a backend, and what an operator does with them.
type Store struct {
	letters.Store
	operate.Files

	Config Config
	Looker operate.Looker    // nil: RabbitMQ
	Rabbit *deadletter.Store // nil: another backend

	end func() // closes the client
}

// connectTimeout is how long a command tries to connect at the start.
const connectTimeout = 10 * time.Second

// Fault is an error of a flag or the address: no server was asked.
type Fault struct{ error }

// ofFlags returns the error of a Config, with the flags in place of its fields.
func ofFlags(err error) error {
	if err == nil {
		return nil
	}
	inner := cmp.Or(errors.Unwrap(err), err)
	names := strings.NewReplacer("Table is", "--table is", "Prefix is", "--prefix is")
	return Fault{errors.New(names.Replace(inner.Error()))}
}

// misread is the error of an address that a client cannot read.
func (c Config) misread(err error) error {
	kind := c.Address.Kind
	return Fault{fmt.Errorf("%s is no address of %s: %s; it must be like %s", c.Address.Where(), kind.Name,
		strings.TrimPrefix(err.Error(), "redis: "), kind.Example)}
}

// Open connects once, and returns the Store. An error names the backend, and what to do; that of a flag or the address
// is a Fault. Not every client ends with a context: a connection that is made too late is closed.
func Open(ctx context.Context, config Config) (*Store, error) {
	if config.Address.Kind.Groups {
		if err := ofFlags(config.topics().Validate()); err != nil {
			return nil, err
		}
	}
	within, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	type result struct {
		store *Store
		err   error
	}
	opened := make(chan result)
	go func() {
		store, err := config.Address.Kind.open(within, config)
		select {
		case opened <- result{store, err}:
		case <-within.Done():
			if err == nil {
				_ = store.Close()
			}
		}
	}()
	var r result
	select {
	case r = <-opened:
	case <-within.Done():
		r.err = within.Err()
	}
	switch {
	case r.err == nil:
		r.store.Config = config
		return r.store, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, config.unreachable(r.err)
}

// relayed returns the Store of a backend that is not RabbitMQ.
func relayed(store letters.Store, err error, end func()) (*Store, error) {
	if err != nil {
		end()
		return nil, err
	}
	of := operate.Of(store)
	return &Store{Store: store, Files: of, Looker: of, end: end}, nil
}

// Close implements letters.Store. It closes the client, too.
func (s *Store) Close() error {
	err := s.Store.Close()
	if s.end != nil {
		s.end()
	}
	return err
}

// advised is an error that has its advice already.
type advised struct{ error }

// unreachable returns the error of a connection that cannot be made, with what to do.
func (c Config) unreachable(err error) error {
	var known advised
	var fault Fault
	switch {
	case errors.As(err, &known):
		return known.error
	case errors.As(err, &fault):
		return fault
	}
	var (
		host    *net.DNSError
		timeout net.Error
		kind    = c.Address.Kind
		text    = strings.TrimSuffix(err.Error(), ".")
	)
	advice := fmt.Sprintf("is %s running there, and is the port that of %[1]s (%s)?", kind.Name, kind.port)
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
	}
	switch {
	case errors.As(err, &host):
		advice = "check the name of the host"
	case errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout():
		text = fmt.Sprintf("no answer within %v", connectTimeout)
		if c.TLS != nil || strings.HasPrefix(c.Address.String(), "rediss:") {
			advice += " A server without TLS does not answer a client that has TLS: leave TLS out for it"
		}
	case has("first record does not look like a TLS handshake"):
		advice = "the port has no TLS: use that of TLS, or an address without TLS"
	case has("tls:", "x509:"):
		advice = "check --ca-file, --cert-file, --key-file and --server-name"
	case has("SQLSTATE 3D000", "DB index is out of range"):
		advice = "check the database in the address"
	case has("WRONGPASS", "NOAUTH", "SQLSTATE 28", "Authorization Violation", "SASL"):
		advice = "check the user and the password (WMRETRY_URL or --password-file)"
	}
	return fmt.Errorf("cannot connect to %s at %s: %s; %s", kind.Name, c.Address.Place(), text, advice)
}

func (c Config) topics() relaytopic.Names { return relaytopic.Names{Prefix: c.Prefix} }

// Topic returns the dead-letter topic of an app's topic. The group is that of the Config, or else the only one that has
// this topic.
func (s *Store) Topic(ctx context.Context, topic string) (string, error) {
	names := s.Config.topics()
	if names.IsDead(topic) {
		return topic, nil
	}
	if group := s.Config.Group; group != "" {
		return names.Dead(relaytopic.Key(group, topic)), nil
	}
	keys, err := s.Looker.Keys(ctx)
	if err != nil {
		return "", err
	}
	var groups, found []string
	for _, key := range keys {
		group, of, _ := strings.Cut(key, ".")
		if key == topic || of == topic {
			groups, found = append(groups, group), append(found, key)
		}
	}
	switch len(found) {
	case 1:
		return names.Dead(found[0]), nil
	case 0:
		return "", fmt.Errorf("%w: no consumer group has the topic %q with the prefix %q, and a name that is long, or has "+
			"other characters than letters, digits, dots, underscores and hyphens, needs --consumer-group, too",
			letters.ErrNoQueue, topic, strings.TrimSuffix(names.Dead(""), ".dead."))
	}
	return "", fmt.Errorf("several consumer groups have the topic %q: choose one with --consumer-group: %s", topic,
		strings.Join(groups, ", "))
}
