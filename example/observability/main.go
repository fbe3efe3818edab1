//go:build unix

// Command observability shows what package observe makes visible. An app bills orders on a RabbitMQ. Some orders fail
// and come back, some die, and then the payment provider is away: the breaker pauses the handler. At the end an
// operator brings the dead letters back. A Prometheus with the alert rules of this repository scrapes the app.
//
//	make demo-observability                     # with a RabbitMQ and a Prometheus that it starts
//	AMQP_URL=amqp://guest:guest@localhost:5672/ go run .
//
// app.go shows what an app has to do for it. The other files are the demo.
package main

import (
	"cmp"
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
)

// options are the flags.
type options struct {
	uri        string
	management string
	queue      string
	metrics    string
	outage     time.Duration
	appOnly    bool
	once       bool
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	opts, err := parse(args, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		_, _ = fmt.Fprintln(stderr, "observability:", err)
		return 2
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // a closed pipe must not leave queues and processes
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err = demo(ctx, opts, stdout)
	if err == nil || ctx.Err() != nil && !opts.once {
		return 0 // Ctrl-C is the ordinary end
	}
	_, _ = fmt.Fprintln(stderr, "observability:", strings.ReplaceAll(err.Error(), "\n", "; "))
	return 1
}

// parse never prints the broker's address, and no error contains it: it contains the password.
func parse(args []string, stdout io.Writer) (options, error) {
	opts := options{uri: cmp.Or(os.Getenv("AMQP_URL"), localBroker), management: os.Getenv("AMQP_MANAGEMENT_URL")}
	flags := flag.NewFlagSet("observability", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&opts.queue, "queue", "observability-demo",
		"the work queue. It is removed at the start and at the end")
	flags.StringVar(&opts.metrics, "metrics", "127.0.0.1:2112", "`host:port` of the app's metrics")
	flags.DurationVar(&opts.outage, "outage", 15*time.Second, "how long the payment provider is away")
	flags.BoolVar(&opts.appOnly, "app", false, "the app only, on and on, without Prometheus. For containers")
	flags.BoolVar(&opts.once, "once", false, "end when everything was shown; the exit status is 0 only if it has "+
		"happened")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			flags.SetOutput(stdout)
			flags.PrintDefaults()
		}
		return opts, err
	}
	switch {
	case flags.NArg() > 0:
		return opts, errors.New("arguments are not allowed, only flags: -h lists them")
	case opts.queue == "":
		return opts, errors.New("-queue is empty: name the work queue")
	case opts.outage < time.Second || opts.outage > time.Hour:
		return opts, fmt.Errorf("-outage is %v: it must be 1s to 1h", opts.outage)
	case opts.appOnly && opts.once:
		return opts, errors.New("-app runs until it is stopped: do not set -once with it")
	}
	return opts, nil
}
