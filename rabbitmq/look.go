package rabbitmq

import (
	"context"
	"net"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/tieredretry/watermill-retry/rabbitmq/internal/dial"
)

const closeTimeout = 2 * time.Second

// look is a short-lived connection to look at the broker.
type look struct {
	*amqp091.Connection
	socket net.Conn
}

// dial connects as watermill-amqp does.
func (b *Builder) dial() (*look, error) {
	config := amqp091.Config{Locale: "en_US", TLSClientConfig: b.config.App.TLS.Clone()}
	if own := CloneConnection(b.config.App.Connection); own != nil {
		config = *own
	}
	connection, socket, err := dial.Open(context.Background(), b.config.App.URI, config, nil)
	if err != nil {
		return nil, err
	}
	return &look{connection, socket}, nil
}

func (l *look) close() { dial.Close(l.Connection, l.socket, closeTimeout) }
