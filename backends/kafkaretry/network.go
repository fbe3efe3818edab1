package kafkaretry

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/IBM/sarama"
)

// closeTimeout is how long a Close waits for brokers. What they have not answered by then is given up.
const closeTimeout = 10 * time.Second

var errSilent = errors.New("the brokers of Kafka do not answer, so their connections were cut")

// network has the connections of all clients of a connection to Kafka. sarama ends a request only with its timeout, and
// tries again: with brokers that drop packets, a Close of it takes minutes.
type network struct {
	whole context.Context // ends with cut
	cut   context.CancelFunc
}

func newNetwork() *network {
	n := new(network)
	n.whole, n.cut = context.WithCancel(context.Background())
	return n
}

// of makes the client of a configuration dial through the network. It returns the configuration, which it modifies.
func (n *network) of(config *sarama.Config) *sarama.Config { return n.watched(config, nil) }

// watched is of for a client whose requests are watched.
func (n *network) watched(config *sarama.Config, traffic *traffic) *sarama.Config {
	var stock stockDialer = &net.Dialer{
		Timeout: config.Net.DialTimeout, KeepAlive: config.Net.KeepAlive, LocalAddr: config.Net.LocalAddr,
	}
	if config.Net.Proxy.Enable {
		stock = config.Net.Proxy.Dialer
	}
	config.Net.Proxy.Enable, config.Net.Proxy.Dialer = true, dialer{n, stock, traffic}
	return config
}

type stockDialer interface {
	Dial(network, address string) (net.Conn, error)
}

type dialer struct {
	network *network
	stock   stockDialer
	traffic *traffic // nil: it is not watched
}

// Dial implements the Proxy of sarama.
func (d dialer) Dial(network, address string) (connection net.Conn, err error) {
	whole := d.network.whole
	if err := whole.Err(); err != nil {
		return nil, errClosed
	}
	if stock, cancels := d.stock.(interface {
		DialContext(ctx context.Context, network, address string) (net.Conn, error)
	}); cancels {
		connection, err = stock.DialContext(whole, network, address)
	} else {
		connection, err = d.stock.Dial(network, address)
	}
	if err != nil {
		return nil, err
	}
	if d.traffic != nil {
		connection = d.traffic.watch(connection)
	}
	opened := connection
	return dialed{opened, context.AfterFunc(whole, func() { _ = opened.Close() })}, nil
}

// dialed is a connection that the end of its network closes.
type dialed struct {
	net.Conn
	forget func() bool
}

func (d dialed) Close() error {
	d.forget()
	return d.Conn.Close()
}

// within returns what end returns, which needs answers of brokers. Where they do not come, it cuts the connections.
func (n *network) within(end func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- end() }()
	timeout := time.NewTimer(closeTimeout)
	defer timeout.Stop()
	select {
	case err := <-ended:
		return err
	case <-n.whole.Done(): // by another one
	case <-timeout.C:
		n.cut()
	}
	return errSilent
}
