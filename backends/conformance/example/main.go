// Command example runs the app of ../../../example on other backends: the same orders, the same timeline, the same last
// line. The backend is one line of function connect.
//
//	go run -C backends/conformance ./example -backend nats
//
// The backends are the demos of package registry. It starts a private server.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/ThreeDotsLabs/watermill"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"github.com/nats-io/nats.go"
	r "github.com/redis/go-redis/v9"

	"github.com/tieredretry/watermill-retry/backends/conformance/registry"
	"github.com/tieredretry/watermill-retry/backends/kafkaretry"
	"github.com/tieredretry/watermill-retry/backends/natsretry"
	"github.com/tieredretry/watermill-retry/backends/postgresretry"
	"github.com/tieredretry/watermill-retry/backends/redisretry"
	"github.com/tieredretry/watermill-retry/example/orders"
	"github.com/tieredretry/watermill-retry/retry"
)

// app is the name of the service, which is its consumer group.
const app = "billing"

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	var choices []orders.Choice
	for _, e := range registry.Demos() {
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

// connect connects the app to the server at a URL.
func connect(backend, u string, p retry.Policy, l watermill.LoggerAdapter) (retry.Connection, error) {
	switch backend {
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
	retries, err := connect(e.Name, server.URL, retry.Policy{Schedule: opts.Schedule}, logger)
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	return &orders.Backend{
		Name: e.Demo.Title, Topic: "orders", Retries: retries,
		Closers: []func() error{retries.Close, stop},
	}, nil
}
