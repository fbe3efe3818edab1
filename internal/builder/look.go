package builder

import (
	"net"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

const (
	dialTimeout  = 30 * time.Second // amqp091-go's own
	closeTimeout = 2 * time.Second
)

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
	l := &look{}
	dial := config.Dial
	if dial == nil {
		dial = amqp091.DefaultDial(dialTimeout)
	}
	config.Dial = func(network, address string) (socket net.Conn, err error) {
		socket, err = dial(network, address)
		l.socket = socket
		return socket, err
	}
	var err error
	l.Connection, err = amqp091.DialConfig(b.config.App.URI, config)
	if err != nil && l.socket != nil {
		_ = l.socket.Close()
	}
	return l, err
}

// close does not wait for a broker that answers nothing: in an alarm it does not read from a connection that has published.
func (l *look) close() {
	limit := time.AfterFunc(closeTimeout, func() { _ = l.socket.Close() })
	defer limit.Stop()
	_ = l.Connection.Close()
}
