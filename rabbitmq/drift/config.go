package drift

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/workqueue"
	"github.com/tieredretry/watermill-retry/rabbitmq/topology"
)

const connectionName = "watermill-retry topology"

// Config configures Compare and Apply. URI and Management are required.
type Config struct {
	// URI is the broker's address: amqp:// or amqps://. Errors contain its host, port and virtual host, and never the
	// rest.
	URI string

	// AMQP is the configuration of amqp091-go; nil means its defaults. TLS is the TLS configuration for amqps://
	// addresses. Only one of TLS and AMQP.TLSClientConfig may be set. Both are copied.
	AMQP *amqp091.Config
	TLS  *tls.Config

	// Management is the address of the management API, such as http://host:15672. Without user and password
	// it has those of URI.
	Management string

	// AllowUnprotectedQuorum is that of rabbitmq.Settings: it accepts, on RabbitMQ 4.0 to 4.2, a work queue that is a
	// quorum queue without a dead-letter exchange. A policy that has the exchange is enough, too.
	AllowUnprotectedQuorum bool
}

// Wanted is what one work queue needs: see topology.New.
type Wanted struct {
	Topology topology.Config
	Queue    topology.Queue // as the app itself would declare it
}

// plainConfig is a Config without its methods.
type plainConfig Config

// Format implements fmt.Formatter. It prints the configuration without the passwords in its addresses, whatever the
// verb as %v does: with a wrong verb, fmt prints what a pointer leads to.
func (c Config) Format(state fmt.State, _ rune) {
	c.URI, c.Management = wire.RedactedURI(c.URI), management.Redacted(c.Management)
	_, _ = fmt.Fprintf(state, fmt.FormatString(state, 'v'), plainConfig(c))
}

// MarshalJSON implements json.Marshaler for a log: the JSON is a text, what Format prints with %+v.
func (c Config) MarshalJSON() ([]byte, error) { return json.Marshal(fmt.Sprintf("%+v", c)) }

func (c Config) connection() wire.Config { return wire.Config{URI: c.URI, AMQP: c.AMQP, TLS: c.TLS} }

func (c Config) validate(wanted []Wanted) error {
	all := c.connection().Faults()
	if c.Management == "" {
		all = append(all, errors.New("Management is empty: set the address of the management API"))
	} else {
		all = append(all, faults.Of("Management", management.Validate(c.Management)))
	}
	if len(wanted) == 0 {
		all = append(all, errors.New("no work queue is named: name at least one"))
	}
	for i, w := range wanted {
		all = append(all, faults.In(fmt.Sprintf("wanted[%d].Topology", i), topology.New(w.Topology, w.Queue).Validate()))
	}
	return errors.Join(all...)
}

// connect calls use with a connection, which is closed afterwards, or when ctx ends.
func (c Config) connect(ctx context.Context, use func(broker workqueue.Broker, vhost string) error) error {
	connection, err := c.connection().Connect(ctx, connectionName, nil)
	if err != nil {
		return fmt.Errorf("cannot %w", err)
	}
	err = workqueue.Use(ctx, connection, func(b workqueue.Broker) error { return use(b, connection.Client.Config.Vhost) })
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
