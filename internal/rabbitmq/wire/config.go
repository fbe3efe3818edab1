package wire

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// Config is where and how to connect. URI is required; every other field has a default.
type Config struct {
	// URI is the broker's address: amqp:// or amqps://. Reserved characters in the user name and password have to be
	// percent-encoded, and also '@' in the virtual host and in parameters. Errors and log lines contain its host, port
	// and virtual host, and never the rest.
	URI string

	// AMQP is the configuration of amqp091-go; nil means its defaults. It is copied and never modified. Its Recovery
	// has to be nil, because a Link reconnects by itself. Its Properties get a connection_name unless they have one.
	// Its Dial is used if it is set.
	AMQP *amqp091.Config

	// TLS is the TLS configuration for amqps:// addresses. Only one of TLS and AMQP.TLSClientConfig may be set. It is
	// copied.
	TLS *tls.Config

	// ReconnectInitial and ReconnectMax are the bounds of the pause before each attempt of a Link to reconnect. It
	// starts at ReconnectInitial, doubles after each attempt up to ReconnectMax, and is shortened at random by up to a
	// half. Defaults 100 ms and 5 s. The caller has checked them.
	ReconnectInitial, ReconnectMax time.Duration
}

// Pause returns a new pause between attempts, with the bounds of the configuration.
func (c Config) Pause() Backoff {
	longest := cmp.Or(c.ReconnectMax, max(ReconnectMax, c.ReconnectInitial))
	return Backoff{Initial: cmp.Or(c.ReconnectInitial, min(ReconnectInitial, longest)), Max: longest}
}

// Faults returns all faults, each with its field.
func (c Config) Faults() []error {
	var faults []error
	uri, err := ParseURI(c.URI)
	if err != nil {
		faults = append(faults, err)
	}
	tlsSet := c.TLS != nil
	if c.AMQP != nil {
		if c.AMQP.Recovery != nil {
			faults = append(faults, errors.New("AMQP.Recovery: is set, must be nil: this library reconnects by itself"))
		}
		if tlsSet && c.AMQP.TLSClientConfig != nil {
			faults = append(faults, errors.New("TLS: is set, and so is AMQP.TLSClientConfig: only one of them may be "+
				"set"))
		}
		tlsSet = tlsSet || c.AMQP.TLSClientConfig != nil
	}
	if tlsSet && err == nil && uri.Scheme != "amqps" {
		faults = append(faults, fmt.Errorf("TLS: is set, but the URI's scheme is %q, must be \"amqps\": nothing "+
			"would be encrypted", uri.Scheme))
	}
	return faults
}

// Client returns a copy of the client's configuration that amqp091-go may modify. Name is the connection_name, unless
// the app has set one.
func (c Config) Client(name string) amqp091.Config {
	var config amqp091.Config
	if c.AMQP != nil {
		config = *c.AMQP
		config.SASL = append([]amqp091.Authentication(nil), c.AMQP.SASL...)
		if len(config.SASL) == 0 {
			config.SASL = nil
		}
	}
	if c.TLS != nil {
		config.TLSClientConfig = c.TLS
	}
	config.TLSClientConfig = config.TLSClientConfig.Clone()
	properties := amqp091.NewConnectionProperties()
	if len(config.Properties) > 0 {
		properties = maps.Clone(config.Properties)
	}
	if _, named := properties["connection_name"]; !named {
		properties.SetClientConnectionName(name)
	}
	config.Properties = properties
	return config
}

// Own returns a copy that does not change when the app changes its AMQP or TLS configuration.
func (c Config) Own(name string) Config {
	if c.AMQP != nil {
		own := c.Client(name) // contains TLS
		c.AMQP, c.TLS = &own, nil
	} else {
		c.TLS = c.TLS.Clone()
	}
	return c
}

// Durations returns a fault for each negative duration. Zero stands for the default.
func Durations(fields []Field) []error {
	var faults []error
	for _, field := range fields {
		if field.Value < 0 {
			faults = append(faults, fmt.Errorf("%s: %s, must not be negative (0 for the default)", field.Name,
				field.Value))
		}
	}
	return faults
}

// A Field is a duration of a configuration.
type Field struct {
	Name  string
	Value time.Duration
}
