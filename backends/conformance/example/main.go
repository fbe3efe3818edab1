// Command example runs the app of ../../../example on other backends: the same orders, the same timeline, the same last
// line. The backend is one line of function connect.
//
//	go run -C backends/conformance ./example -backend nats
//
// The backends are those of package registry. It starts a private server. On RabbitMQ that is a virtual host of its
// own, on the broker of AMQP_URL and AMQP_MANAGEMENT_URL.
package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/ThreeDotsLabs/watermill"
	amqpv2 "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	amqpv3 "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"github.com/nats-io/nats.go"
	r "github.com/redis/go-redis/v9"

	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
	"github.com/tieredretry/watermill-retry/backends/kafkaretry"
	"github.com/tieredretry/watermill-retry/backends/natsretry"
	"github.com/tieredretry/watermill-retry/backends/postgresretry"
	"github.com/tieredretry/watermill-retry/backends/redisretry"
	"github.com/tieredretry/watermill-retry/config"
	"github.com/tieredretry/watermill-retry/config/amqp3"
	"github.com/tieredretry/watermill-retry/example/orders"
	"github.com/tieredretry/watermill-retry/relay"
	"github.com/tieredretry/watermill-retry/retry"
)

// app is the name of the service, which is its consumer group.
const app = "billing"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	var choices []orders.Choice
	for _, e := range registry.All() {
		choices = append(choices, orders.Choice{
			Name: e.Name,
			Open: func(ctx context.Context, opts orders.Options, logger watermill.LoggerAdapter) (*orders.Backend,
				error) {
				return open(ctx, e, opts, logger)
			},
		})
	}
	return orders.Main(args, stdout, stderr, choices...)
}

// connect connects the app to the server at a URL. That is one line, but on gochannel: it has no address, so that the
// app opens it, and a relay takes a function that returns a subscriber of it.
func connect(backend, u string, p retry.Policy, l watermill.LoggerAdapter) (retry.Connection, error) {
	switch backend {
	case "gochannel":
		c := gochannel.NewGoChannel(gochannel.Config{}, l)
		subscriber := func(relay.SubscriberParams) (message.Subscriber, error) { return c, nil }
		return relay.Connect(relay.Config{Publisher: c, Policy: p, NewSubscriber: subscriber}, l)
	case "rabbitmq-v2":
		return config.Connect(config.Config{AMQP: amqpv2.NewDurableQueueConfig(u), Policy: p}, l)
	case "rabbitmq-v3":
		return amqp3.Connect(amqp3.Config{AMQP: amqpv3.NewDurableQueueConfig(u), Policy: p}, l)
	case "kafka":
		return kafkaretry.Connect(kafkaretry.Config{Brokers: []string{u}, Group: app, Policy: p}, l)
	case "nats":
		return natsretry.Connect(natsretry.Config{Conn: must(nats.Connect(u)), Group: app, Policy: p}, l)
	case "postgres":
		return postgresretry.Connect(postgresretry.Config{DB: must(sql.Open("pgx", u)), Group: app, Policy: p}, l)
	case "redis":
		return redisretry.Connect(redisretry.Config{Client: r.NewClient(&r.Options{Addr: u}), Group: app, Policy: p}, l)
	}
	return nil, fmt.Errorf("the example has no line for the backend %q", backend)
}

// must returns a client. The program ends where there is none.
func must[T any](client T, err error) T {
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "example:", err)
		os.Exit(1)
	}
	return client
}

// open starts a private server, and connects the app to it.
func open(
	ctx context.Context, e registry.Entry, opts orders.Options, logger watermill.LoggerAdapter,
) (*orders.Backend, error) {
	server, err := e.Server(ctx)
	if err != nil {
		return nil, err
	}
	stop := func() error { server.Stop(); return nil }
	if e.Start == nil && e.AddressVariable != "" {
		if server.URL, stop, err = virtualHost(ctx, server.URL); err != nil {
			return nil, err
		}
	}
	retries, err := connect(e.Name, server.URL, retry.Policy{Schedule: opts.Schedule}, logger)
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	return &orders.Backend{
		Name: cmp.Or(e.Demo.Title, e.Name), Topic: "orders", Retries: retries,
		Closers: []func() error{retries.Close, stop},
	}, nil
}
