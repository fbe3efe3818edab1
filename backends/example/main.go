// Command example runs the app of ../../example on other backends: the same orders, the same timeline, the same last line.
//
//	go run -C backends ./example -backend nats
//	go run -C backends ./example -backend redis -address localhost:6379
//
// Without an address it starts a private server. The backends are listed in package registry. The code that an app needs for
// a backend is in the folder above, one file for each.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/backends"
	"github.com/tieredretry/watermill-retry/backends/registry"
	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/example/orders"
)

type options struct {
	backend registry.Entry
	address string // empty: start a private server
	orders  orders.Options
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
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // without its reader a write returns an error: the process goes on and cleans up
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
	var names, forms []string
	for _, e := range registry.Demos() {
		names, forms = append(names, e.Demo.Name), append(forms, e.Demo.Name+": "+e.Demo.Address)
	}
	flags := flag.NewFlagSet("example", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	backend := flags.String("backend", names[0], "one of "+strings.Join(names, ", "))
	flags.StringVar(&opts.address, "address", "", "`address` of the server ("+strings.Join(forms, ", ")+"); none starts a private server")
	flags.IntVar(&opts.orders.Messages, "messages", 40, "how many orders to bill, 1 to 10000")
	opts.orders.Schedule = backoff.Schedule{500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second}
	flags.TextVar(&opts.orders.Schedule, "schedule", opts.orders.Schedule, "the delay before each retry, such as \"1s 5s 25s*3\"")
	flags.BoolVar(&opts.orders.Verbose, "v", false, "log what Watermill does, to stderr")
	err := flags.Parse(args)
	if err != nil {
		if errors.Is(err, flag.ErrHelp) {
			flags.SetOutput(stdout)
			flags.PrintDefaults()
		}
		return opts, err
	}
	if opts.backend, err = registry.FindDemo(*backend); err != nil {
		return opts, fmt.Errorf("-backend: %w", err)
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
	if opts.address == "" {
		server, err := opts.backend.Server(ctx)
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
	backend, err := connect(opts, logger)
	if err != nil {
		return err
	}
	return orders.Run(ctx, opts.orders, backend, out, logger)
}

// connect connects the app. Topic and prefix are unique to this run.
func connect(opts options, logger watermill.LoggerAdapter) (_ *orders.Backend, err error) {
	name := strings.ToLower(rand.Text()[:6])
	topic, prefix := "orders-"+name, "retry-"+name
	backend := opts.backend.Open(opts.address, logger)
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
	if backend.Remove != nil {
		open = append(open, func() error { return backend.Remove(prefix, topic) })
	}

	retries, err := backend.Connect(backends.App{Group: "billing", Prefix: prefix, Schedule: opts.orders.Schedule})
	if err != nil {
		return nil, err
	}
	open = append(open, retries.Close)
	letters, letterTopic, err := retries.DeadLetters(orders.Handler, topic)
	if err != nil {
		return nil, err
	}
	open = append(open, letters.Close)
	return &orders.Backend{
		Name: opts.backend.Demo.Title + " at " + place(opts.address), Topic: topic, Retries: retries,
		DeadLetters: letters, DeadLetterTopic: letterTopic,
		Close: open.close,
	}, nil
}

// place returns an address without user and password.
func place(address string) string {
	if uri, err := url.Parse(address); err == nil && uri.Host != "" {
		return uri.Host
	}
	if strings.ContainsAny(address, "@ ") {
		return "the given address"
	}
	return address
}

// closers close what is open, the last opened first.
type closers []func() error

func (c closers) close() error {
	var faults []error
	for _, close := range slices.Backward(c) {
		faults = append(faults, close())
	}
	return errors.Join(faults...)
}
