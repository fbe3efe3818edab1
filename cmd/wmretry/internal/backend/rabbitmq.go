package backend

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/deadletter"
)

// Rabbit returns the configuration of a store on RabbitMQ.
func (c Config) Rabbit() deadletter.Config {
	return deadletter.Config{URI: c.Address.String(), TLS: c.TLS, Prefix: c.Prefix, Management: c.Management,
		AnyLimit: c.AnyLimit}
}

// ManagementOf returns where the management API of a broker is by default. It may not answer.
func ManagementOf(address Address) (string, error) {
	uri, err := amqp091.ParseURI(address.String())
	if err != nil {
		return "", errors.New("the address of the broker has a port or parameter that is not a number, or reserved " +
			"characters that are not percent-encoded")
	}
	scheme := map[string]string{"amqp": "http", "amqps": "https"}[uri.Scheme]
	return scheme + "://" + net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port+10_000)), nil
}

// openRabbitMQ connects once and closes the connection: errors of the address, the password, TLS and the virtual host
// come from here.
func openRabbitMQ(o *opening) (*Store, error) {
	connection, err := amqp091.DialConfig(o.Address.String(), amqp091.Config{
		TLSClientConfig: o.TLS, Dial: func(network, address string) (net.Conn, error) {
			connection, err := (&net.Dialer{}).DialContext(o.ctx, network, address)
			if err == nil {
				deadline, _ := o.ctx.Deadline()
				err = connection.SetDeadline(deadline) // of the handshake
			}
			return connection, err
		},
	})
	if err != nil {
		return nil, o.refused(err)
	}
	_ = connection.CloseDeadline(time.Now().Add(time.Second))
	store, err := deadletter.Open(o.Config.Rabbit(), o.Logger)
	if err != nil {
		return nil, advised{err}
	}
	return &Store{Store: store, files: store, Rabbit: store}, nil
}

// refused adds what to do about what the broker has answered.
func (o *opening) refused(err error) error {
	var refused *amqp091.Error
	if !errors.As(err, &refused) || refused.Code == amqp091.FrameError { // that is a connection which breaks
		return err
	}
	uri, _ := amqp091.ParseURI(o.Address.String())
	advice := fmt.Sprintf("check the virtual host %q, and that the user %q has permissions for it: rabbitmqctl "+
		"list_permissions -p %q", uri.Vhost, uri.Username, uri.Vhost)
	if refused.Code == amqp091.AccessRefused || errors.Is(err, amqp091.ErrCredentials) || errors.Is(err, amqp091.ErrSASL) {
		advice = fmt.Sprintf("check the password of %q (WMRETRY_URL or --password-file). The user guest may log in only "+
			"from the broker's own host, unless the broker permits more", uri.Username)
	}
	// err is explained
	return advised{fmt.Errorf("cannot connect to RabbitMQ at %s: %v; %s", o.Address.Place(), err, advice)}
}
