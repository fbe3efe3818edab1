// Command example is the app of ../../example on other backends: the same orders, the same timeline, the same last line.
//
//	go run -C backends ./example -backend nats
//	go run -C backends ./example -backend redis -address localhost:6379
//
// Without an address it starts a server that nobody else sees. What each backend asks of an app is in ../nats.go, ../redis.go
// and ../postgres.go.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/backends"
	"github.com/tieredretry/watermill-retry/backends/servers"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/example/orders"
)

// kind is a backend, and how to start a server for it.
type kind struct {
	name  string
	start func(context.Context) (*servers.Server, error)
	open  func(address string, logger watermill.LoggerAdapter) backends.Backend
}

var kinds = map[string]kind{
	"nats":     {"NATS JetStream", servers.NATS, backends.NATS},
	"redis":    {"Redis Streams", servers.Redis, backends.Redis},
	"postgres": {"PostgreSQL, watermill-sql's delayed Pub/Sub", servers.PostgreSQL, backends.Postgres},
}

type options struct {
	backend, address string
	orders           orders.Options
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	opts, err := parse(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		_, _ = fmt.Fprintln(stderr, "example:", err)
		return 2
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // a reader that has gone is an error of the write, not the end
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := demo(ctx, opts, stdout); err != nil {
		_, _ = fmt.Fprintln(stderr, "example:", strings.ReplaceAll(err.Error(), "\n", "; "))
		if ctx.Err() != nil {
			return 130
		}
		return 1
	}
	return 0
}

func parse(args []string, stdout io.Writer) (options, error) {
	var opts options
	names := strings.Join(slices.Sorted(maps.Keys(kinds)), ", ")
	flags := flag.NewFlagSet("example", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&opts.backend, "backend", "nats", "one of "+names)
	flags.StringVar(&opts.address, "address", "", "`address` of the server: nats://host:port, host:port of a Redis, postgres://...; "+
		"none starts a private one")
	flags.IntVar(&opts.orders.Messages, "messages", 40, "how many orders to bill, 1 to 10000")
	opts.orders.Schedule = backoff.Schedule{500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second}
	flags.TextVar(&opts.orders.Schedule, "schedule", opts.orders.Schedule, "the delay before each retry, such as \"1s 5s 25s*3\"")
	flags.BoolVar(&opts.orders.Verbose, "v", false, "log what Watermill does, to stderr")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			flags.SetOutput(stdout)
			flags.PrintDefaults()
		}
		return opts, err
	}
	if _, known := kinds[opts.backend]; !known {
		return opts, fmt.Errorf("-backend is %q: it must be one of %s", opts.backend, names)
	}
	if n := opts.orders.Messages; n < 1 || n > 10_000 {
		return opts, fmt.Errorf("-messages is %d: it must be 1 to 10000", n)
	}
	if err := opts.orders.Schedule.Validate(); err != nil {
		return opts, fmt.Errorf("-schedule: %w", err)
	}
	return opts, nil
}

func demo(ctx context.Context, opts options, out io.Writer) error {
	kind := kinds[opts.backend]
	if opts.address == "" {
		server, err := kind.start(ctx)
		if err != nil {
			return err
		}
		defer server.Stop()
		opts.address = server.URL
	}
	var logger watermill.LoggerAdapter = watermill.NopLogger{}
	if opts.orders.Verbose {
		logger = watermill.NewStdLogger(false, false)
	}
	backend, err := connect(kind, opts, logger)
	if err != nil {
		return err
	}
	return orders.Run(ctx, opts.orders, backend, out, logger)
}

// connect gives the app its publisher, its subscriber and its retries, under names that no other run has.
func connect(kind kind, opts options, logger watermill.LoggerAdapter) (_ *orders.Backend, err error) {
	name := strings.ToLower(rand.Text()[:6])
	topic, prefix := "orders-"+name, "retry-"+name
	backend := kind.open(opts.address, logger)
	var open closers
	defer func() {
		if err != nil {
			err = errors.Join(err, open.close())
		}
	}()
	if backend.Declare != nil {
		if err := backend.Declare(prefix, topic); err != nil {
			return nil, err
		}
	}
	open = append(open, func() error { return backend.Remove(prefix, topic) })

	retries, err := backend.Connect(backends.App{Group: "billing", Prefix: prefix, Schedule: opts.orders.Schedule})
	if err != nil {
		return nil, err
	}
	open = append(open, retries.Close)
	publisher, err := backend.Publisher()
	if err != nil {
		return nil, err
	}
	open = append(open, publisher.Close)
	subscriber, err := retries.Subscriber(orders.Handler)
	if err != nil {
		return nil, err
	}
	open = append(open, subscriber.Close)
	letters, letterTopic, err := retries.DeadLetters(orders.Handler, topic)
	if err != nil {
		return nil, err
	}
	open = append(open, letters.Close)
	return &orders.Backend{
		Name: kind.name + " at " + place(opts.address), Topic: topic,
		Publisher: publisher, Subscriber: subscriber,
		Retries: retries.Config, Relay: retries.Relay,
		DeadLetters: letters, DeadLetterTopic: letterTopic,
		Close: open.close,
	}, nil
}

// place is an address without user and password.
func place(address string) string {
	if uri, err := url.Parse(address); err == nil && uri.Host != "" {
		return uri.Host
	}
	if strings.ContainsAny(address, "@ ") {
		return "the given address"
	}
	return address
}

// closers are what is open, in the order in which it was opened.
type closers []func() error

func (c closers) close() error {
	var faults []error
	for _, close := range slices.Backward(c) {
		faults = append(faults, close())
	}
	return errors.Join(faults...)
}
