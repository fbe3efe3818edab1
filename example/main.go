// Command example bills orders with an ordinary Watermill app. Some orders fail. They wait, come back when they are due, and are
// dead-lettered when their retries are used up.
//
//	go run ./example
//	go run ./example -backend rabbitmq -amqp amqp://guest:guest@localhost:5672/
//
// Package orders contains the app, which is the same on every backend. memory.go and rabbitmq.go contain what differs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/tieredretry/watermill-retry/backoff"
	"github.com/tieredretry/watermill-retry/example/orders"
)

const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130

	maxMessages = 10_000
	localBroker = "amqp://guest:guest@localhost:5672/"

	backendMemory   = "memory"
	backendRabbitMQ = "rabbitmq"
)

// options are the flags.
type options struct {
	backend  string
	uri      string
	messages int
	schedule backoff.Schedule
	verbose  bool
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	opts, err := parse(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		_, _ = fmt.Fprintln(stderr, "example:", err)
		return exitUsage
	}

	// A closed pipe or terminal ends the demo like Ctrl-C: its queues must not stay on the broker.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // without this, a closed pipe would end the process at once
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	context.AfterFunc(ctx, func() { signal.Reset(os.Interrupt, syscall.SIGTERM) }) // a second Ctrl-C ends the process at once

	var logger watermill.LoggerAdapter = watermill.NopLogger{}
	if opts.verbose {
		logger = watermill.NewStdLogger(false, false) // to stderr
	}
	err = demo(ctx, opts, stdout, logger)
	if err == nil {
		return 0
	}
	line := strings.ReplaceAll(err.Error(), "\n", "; ")
	if ctx.Err() != nil {
		_, _ = fmt.Fprintln(stderr, "example: interrupted:", line)
		return exitInterrupted
	}
	_, _ = fmt.Fprintln(stderr, "example:", line)
	return exitFailed
}

func demo(ctx context.Context, opts options, out io.Writer, logger watermill.LoggerAdapter) error {
	var backend *orders.Backend
	var err error
	if opts.backend == backendRabbitMQ {
		backend, err = rabbitMQ(ctx, opts, logger)
	} else {
		backend, err = memory(opts, logger)
	}
	if err != nil {
		return err
	}
	return orders.Run(ctx, orders.Options{Messages: opts.messages, Schedule: opts.schedule, Verbose: opts.verbose}, backend, out, logger)
}

// closers close what a backend has opened, in this order.
type closers []func() error

func (c closers) close() error {
	var faults []error
	for _, close := range c {
		faults = append(faults, close())
	}
	return errors.Join(faults...)
}

// parse never prints the broker's address, and no error contains it: it contains the password.
func parse(args []string, stdout io.Writer) (options, error) {
	var opts options
	flags := flag.NewFlagSet("example", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // an error is one line, without the usage
	flags.StringVar(&opts.backend, "backend", "", "memory, or rabbitmq (default memory, rabbitmq with -amqp)")
	flags.StringVar(&opts.uri, "amqp", "", "`address` of RabbitMQ (default $AMQP_URL, or "+localBroker+" if that is empty)")
	flags.IntVar(&opts.messages, "messages", 40, fmt.Sprintf("how many orders to bill, 1 to %d", maxMessages))
	flags.TextVar(&opts.schedule, "schedule",
		backoff.Schedule{500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second},
		"the delay before each retry, such as \"1s 5s 25s*3\"")
	flags.BoolVar(&opts.verbose, "v", false, "write Watermill's log to stderr")

	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			_, _ = fmt.Fprintln(stdout, "Usage: go run ./example [flags]")
			flags.SetOutput(stdout)
			flags.PrintDefaults()
		}
		return opts, err
	}
	if flags.NArg() > 0 {
		return opts, errors.New("arguments are not allowed, only flags: -h lists them")
	}
	if opts.messages < 1 || opts.messages > maxMessages {
		return opts, fmt.Errorf("-messages is %d: it must be 1 to %d", opts.messages, maxMessages)
	}
	if err := opts.schedule.Validate(); err != nil {
		return opts, fmt.Errorf("-schedule: %w", err)
	}
	switch {
	case opts.backend == "" && opts.uri == "":
		opts.backend = backendMemory
	case opts.backend == "":
		opts.backend = backendRabbitMQ
	case opts.backend != backendMemory && opts.backend != backendRabbitMQ:
		return opts, fmt.Errorf("-backend is %q: it must be %s or %s", opts.backend, backendMemory, backendRabbitMQ)
	case opts.backend == backendMemory && opts.uri != "":
		return opts, errors.New("-amqp is set with -backend memory: use -backend rabbitmq, or remove -amqp")
	}
	if opts.uri == "" {
		opts.uri = os.Getenv("AMQP_URL")
	}
	if opts.uri == "" {
		opts.uri = localBroker
	}
	return opts, nil
}
