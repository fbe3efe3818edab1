package deadletter

import (
	"cmp"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/internal/faults"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/management"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/naming"
	"github.com/tieredretry/watermill-retry/internal/rabbitmq/wire"
)

// Config configures Open. Only URI is required.
type Config struct {
	// URI is the broker's address: amqp:// or amqps://. Errors and log lines contain its host, port and virtual host,
	// and never the rest.
	URI string

	// AMQP is the configuration of amqp091-go; nil means its defaults. TLS is the TLS configuration for amqps://
	// addresses. Only one of TLS and AMQP.TLSClientConfig may be set. Both are copied.
	AMQP *amqp091.Config
	TLS  *tls.Config

	// Prefix is that of the apps (rabbitmq.Settings.Prefix). It names the orphans and the exchange that they go
	// back through. The default is "retry".
	Prefix string

	// Management is the address of the management API, such as http://host:15672. Without user and password
	// it has those of URI. Status, Queues and Prune need it, and other methods use it to know the delivery limit
	// of a queue. The default is none.
	Management string

	// AnyLimit also reads queues whose letters can be lost by that: those with a delivery limit below 5, and those
	// whose limit can be reached where the user may not replace a letter by a copy. The default is to refuse both.
	AnyLimit bool

	// Marshal is that of the app's own marshaler. A redrive needs it only for letters with the header
	// retry_marshal_error, which that marshaler could not marshal when they died. The default is none: such letters
	// stay, and the redrive returns an error.
	Marshal func(*message.Message) (amqp091.Publishing, error)
}

// Validate reports all faults of the configuration. It does not connect.
func (c Config) Validate() error {
	all := wire.Config{URI: c.URI, AMQP: c.AMQP, TLS: c.TLS}.Faults()
	if err := c.prefix().Validate(); err != nil {
		all = append(all, err)
	}
	if c.Management != "" {
		all = append(all, faults.Of("Management", management.Validate(c.Management)))
	}
	return faults.Of("deadletter config", errors.Join(all...))
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

func (c Config) prefix() naming.Prefix {
	return naming.Prefix(cmp.Or(c.Prefix, string(naming.Default)))
}
